"""Bounds of a manifest that another user has written: versions, names, counts and sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlio.dataset import seal
from dlio.dataset.manifest import File, Manifest, Part, Shard, from_bytes, header
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import ManifestError

SHARD = Shard("a", 10, (File("a.tfrecord", 1000, "xxh3-128:0"),))
MANIFEST = Manifest("tfrecord", IMAGE_CLASSIFICATION, (SHARD,))


def text(change: Callable[[dict[str, object], dict[str, object]], object]) -> bytes:
    """Returns a manifest, changed, with the right digest, which an attacker would compute."""
    head, line = header(MANIFEST), json.loads(json.dumps(SHARD.to_json()))
    change(head, line)
    return sealed([head, line])


def sealed(lines: list[object]) -> bytes:
    """Returns lines with their digest line."""
    return seal.sealed("".join(f"{json.dumps(line)}\n" for line in lines).encode())


def test_the_manifest_that_the_others_are_made_of_is_one() -> None:
    assert from_bytes(text(lambda head, line: None), Path("m")) == MANIFEST


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda head, line: head.update(dlio=3), "has the version 3, this dlio reads 1 and 2"),
        (lambda head, line: line.update(samples=1001), "1,001 records, and the shard's files have room for 1,000"),
        (lambda head, line: line.update(samples=1 << 63), "line 2"),
        (lambda head, line: line.update(samples=-1), "line 2"),
        (lambda head, line: line.update(shard="../a"), "points outside"),
        (lambda head, line: line["files"][0].update(name="b/../../a"), "points outside"),
        (lambda head, line: line["files"][0].update(name="/etc/passwd"), "points outside"),
        (lambda head, line: line["files"][0].update(name="a\0b"), "points outside"),
        (lambda head, line: line["files"][0].update(name=""), "points outside"),
    ],
    ids=["version", "records", "2^63", "negative", "shard", "parents", "absolute", "nul", "empty"],
)
def test_what_no_manifest_of_dlio_holds_is_refused(change: Callable[..., object], problem: str) -> None:
    with pytest.raises(ManifestError, match=problem):
        from_bytes(text(change), Path("m"))


def test_the_samples_of_all_shards_are_counted_in_64_bits() -> None:
    most = (1 << 62) + 1
    shard = SHARD.replace(num_samples=most, files=(File("a.tfrecord", 1 << 62, ""), File("b", most, "")))
    lines = [header(MANIFEST), shard.to_json(), shard.to_json()]
    with pytest.raises(ManifestError):
        from_bytes(sealed(lines), Path("m"))
    assert from_bytes(sealed(lines[:2]), Path("m")).num_samples == most


def test_a_selection_has_another_content_id_than_the_whole_and_than_another() -> None:
    parts = [None, Part(20, (0, 10)), Part(20, (10, 10)), Part(21, (0, 10))]
    ids = {replace(MANIFEST, shards=(SHARD.replace(part=part),)).content_id for part in parts}
    assert len(ids) == len(parts)


def test_a_manifest_in_a_folder_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MANIFEST.save(tmp_path)
    monkeypatch.setenv("DLIO_MAX_MANIFEST", str(path.stat().st_size))
    assert Manifest.load(tmp_path) == MANIFEST
    monkeypatch.setenv("DLIO_MAX_MANIFEST", str(path.stat().st_size - 1))
    with pytest.raises(ManifestError, match="set DLIO_MAX_MANIFEST"):
        Manifest.load(tmp_path)
