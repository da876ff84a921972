"""Damaged shards give the right samples, wrong ones that a checksum detects, or the project's error: never a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlio import formats
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import CorruptRecordError
from dlio.testing.samples import samples
from tests.helpers import fork_server

SCRIPT = Path(__file__).with_name("damage.py")


def _damage(container, kind, folder, *options):
    """Returns the exit code, and what was wrong."""
    modules = ("dlio.testing.container", *(f"dlio.formats.{name}" for name in formats.names()))
    job = fork_server.start(modules, SCRIPT, [container.name, kind, str(folder), *options], folder, os.environ)
    return (job.communicate()[0], job.poll())


@pytest.mark.parametrize("kind", ["cut", "flip", "erase"])
def test_damage(each_container, kind, tmp_path):
    assert _damage(each_container, kind, tmp_path) == ("", 0)


@pytest.mark.parametrize("kind", ["cut", "flip", "erase"])
def test_damage_of_a_shard_without_index(each_container, kind, tmp_path):
    (tmp_path / "try").mkdir()
    each_container.write(tmp_path / "try" / "shard", IMAGE_CLASSIFICATION, samples(IMAGE_CLASSIFICATION, 1))
    if not (tmp_path / "try" / "shard.idx").exists():
        pytest.skip(f"{each_container.name} has no index")
    assert _damage(each_container, kind, tmp_path, "--without-index") == ("", 0)


def test_an_index_far_larger_than_its_records_is_not_read(each_container, tmp_path):
    each_container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, samples(IMAGE_CLASSIFICATION, 1))
    if not (index := tmp_path / "shard.idx").exists():
        pytest.skip(f"{each_container.name} has no index")
    os.truncate(index, 1 << 24)  # a sparse file
    records = tmp_path / f"shard{each_container.module.SUFFIX}"
    with pytest.raises(CorruptRecordError, match=r"16,777,216 bytes, expected at most .*: delete it") as caught:
        each_container.module.Reader(records, IMAGE_CLASSIFICATION)
    assert caught.value.path == str(index)
