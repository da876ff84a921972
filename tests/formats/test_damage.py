"""Damaged shards give the right samples, wrong ones that a checksum tells, or the project's error: never a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.testing.samples import samples

SCRIPT = Path(__file__).with_name("damage.py")


def _damage(container, kind, folder, *options):
    return subprocess.run(
        [sys.executable, str(SCRIPT), container.name, kind, str(folder), *options],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.parametrize("kind", ["cut", "flip", "erase"])
def test_damage(each_container, kind, tmp_path):
    done = _damage(each_container, kind, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["cut", "flip", "erase"])
def test_damage_of_a_shard_without_index(each_container, kind, tmp_path):
    (tmp_path / "try").mkdir()
    each_container.write(tmp_path / "try" / "shard", IMAGE_CLASSIFICATION, samples(IMAGE_CLASSIFICATION, 1))
    if not (tmp_path / "try" / "shard.idx").exists():
        pytest.skip(f"{each_container.name} has no index")
    done = _damage(each_container, kind, tmp_path, "--without-index")
    assert done.returncode == 0, done.stderr
