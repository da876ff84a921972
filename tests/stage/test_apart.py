"""Indexed files are staged as whole groups, verified, and loaded from the copy."""

from __future__ import annotations

import os
import random
import stat
import threading
import time
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import DigestError, StorageError, UsageError
from dlio.formats.layouts.file_list import FileList
from dlio.io import threads
from dlio.pack import plan
from dlio.stage.sources import source_of
from tests.helpers.images import make_image_folder
from tests.helpers.lazy import Lazy

DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """Forty images in groups of some."""
    monkeypatch.setattr(plan, "DEFAULT_SHARD_BYTES", 1500)
    make_image_folder(tmp_path / "photos", {"cat": 18, "dog": 22})
    return dlio.index(tmp_path / "photos", checksums=True, workers=1)


def test_a_copy_is_verified_and_needs_the_files_no_more(found, tmp_path):
    expected = [(image.tobytes(), label) for image, label in map(PackedDataset(found.root).__getitem__, range(40))]
    staged = dlio.stage(found.root, tmp_path / "local", strategy="replicate")
    assert staged.content_id == found.content_id and staged.root != found.root
    (tmp_path / "photos").rename(tmp_path / "away")
    copy = PackedDataset(staged)
    assert [(image.tobytes(), label) for image, label in map(copy.__getitem__, range(40))] == expected
    assert dlio.verify(staged, decode=True, workers=1) == []
    assert {stat.S_IMODE(path.stat().st_mode) for path in staged.root.glob("shard-*")} == {0o600}
    assert dlio.stage(found.root, tmp_path / "local", strategy="replicate").root == staged.root


def test_parts_are_staged_and_a_loader_fills_the_cache(found, tmp_path):
    part = dlio.select(found.root, tmp_path / "some", classes=["dog"])
    loader = DataLoader(PackedDataset(part.root, cache=tmp_path / "cache"), 4, collate_fn=lambda rows: rows)
    assert [label for rows in loader for _, label in rows] == [1] * 22
    loader.close()
    dlio.clean(tmp_path / "cache")


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_any_range_is_that_of_the_files_one_after_the_other(found, monkeypatch, seed, is_slow):
    monkeypatch.setattr(threads, "_SLOW_SECONDS", -1.0 if is_slow else 10.0)
    source, choose = source_of(found.root), random.Random(seed)
    whole, names = b"", [key for key, _ in PackedDataset(found.root).samples]
    at = 0
    for shard in found.shards:
        whole = b"".join((found.root / "files" / name).read_bytes() for name in names[at : at + shard.num_samples])
        at += shard.num_samples
        for _ in range(20):
            start = choose.randrange(len(whole))
            target = bytearray(choose.randrange(len(whole) - start + 1))
            source.read_range(shard.files[0], start, memoryview(target))
            assert target == whole[start : start + len(target)]
    assert len(whole) == found.shards[-1].files[0].num_bytes
    source.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "dlio-files"]


def test_files_on_slow_storage_are_read_side_by_side(found, monkeypatch):
    together, most = 0, 0
    plain, lock = FileList.fill, threading.Lock()

    def slow(self, *args):
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.02)
        plain(self, *args)
        with lock:
            together -= 1

    monkeypatch.setattr(FileList, "fill", slow)
    source, shard = source_of(found.root), found.shards[0]
    source.read_range(shard.files[0], 0, memoryview(bytearray(shard.files[0].num_bytes)))
    source.close()
    assert most == shard.num_samples - 4  # the first ones showed that all are slow


def test_a_changed_file_ends_the_copy_and_is_named(found, tmp_path):
    path = tmp_path / "photos" / "dog" / "0007.png"
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    with pytest.raises(StorageError, match=r"dog/0007\.png.*it has .* bytes, and had"):
        dlio.stage(found.root, tmp_path / "local", strategy="replicate")
    path.write_bytes(bytes(len(data)))
    with pytest.raises(DigestError, match=r"shard-0*\d\.files of the files indexed|shard-0*\d\.files"):
        dlio.stage(found.root, tmp_path / "local", strategy="replicate")
    assert not list((tmp_path / "local").rglob("manifest.jsonl"))
    path.write_bytes(data)
    os.utime(path)
    assert dlio.verify(dlio.stage(found.root, tmp_path / "local", strategy="replicate"), workers=1) == []


def test_without_checksums_nothing_is_staged(tmp_path):
    make_image_folder(tmp_path / "photos", {"cat": 3})
    found = dlio.index(tmp_path / "photos")
    with pytest.raises(UsageError, match="was indexed without checksums"):
        dlio.stage(found.root, tmp_path / "local")
    with pytest.raises(UsageError, match="was indexed without checksums"):
        PackedDataset(found.root, cache=tmp_path / "cache")
    assert len(PackedDataset(found.root)) == 3
