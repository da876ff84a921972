"""What one node of a broadcast writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlio.dataset.manifest import File
from dlio.errors import DigestError
from dlio.io.files import digest_file
from dlio.stage.cache.access import PRIVATE
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.transfer import new_file
from dlio.stage.transfer.copy import Tally
from dlio.stage.transfer.new_file import page_buffer
from dlio.stage.transfer.stream import Lacking, Sink
from tests.helpers.staging import MiB


def test_files_with_holes_are_synced_while_they_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is asked now and then, so that the last fsync is short however large the file is."""
    blocks = [bytes(MiB), b"x" * MiB, bytes(MiB), b"y" * (MiB // 2)]
    (tmp_path / "source").write_bytes(b"".join(blocks))
    file = File("train.bin", 7 * MiB // 2, digest_file(tmp_path / "source", "xxh3-128"))
    folder = StagedFolder(tmp_path / "local", "copy")
    folder.path.mkdir(parents=True)
    synced: list[int] = []
    monkeypatch.setattr(new_file, "_SYNC_BYTES", MiB)
    monkeypatch.setattr(new_file.os, "fdatasync", synced.append)
    lacking = Lacking(folder, frozenset([file]), tmp_path / "aside", {file.name: PRIVATE})
    sink = Sink([file], lacking, Tally(), page_buffer())
    for block in blocks:
        sink.write(memoryview(block))
    assert len(synced) == 3
    assert (folder.path / "train.bin").read_bytes() == b"".join(blocks)


def test_a_file_with_another_digest_gets_no_name(tmp_path: Path) -> None:
    file = File("train.bin", 4, "xxh3-128:0")
    folder = StagedFolder(tmp_path / "local", "copy")
    folder.path.mkdir(parents=True)
    sink = Sink(
        [file], Lacking(folder, frozenset([file]), tmp_path / "aside", {file.name: PRIVATE}), Tally(), page_buffer()
    )
    with pytest.raises(DigestError, match="expected the digest xxh3-128:0"):
        sink.write(memoryview(b"data"))
    assert not list(folder.path.iterdir())
