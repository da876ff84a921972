"""Pieces on their way into a file: past the page cache where the file system can, and right in any case."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from dlio.stage.engine.writing import PAGE_BYTES, Buffers, write_range

CONTENT = random.Random(5).randbytes(3 * PAGE_BYTES + 77)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An unfinished file of five pages and a bit."""
    (path := tmp_path / "file").write_bytes(bytes(2 * PAGE_BYTES + len(CONTENT)))
    return path


def piece() -> memoryview:
    """Returns page-aligned memory with the content."""
    target = Buffers().take()[: len(CONTENT)]
    target[:] = CONTENT
    return target


def written(path: Path) -> bytes:
    """Returns what a loader reads where the content belongs."""
    return path.read_bytes()[2 * PAGE_BYTES :]


@pytest.mark.parametrize("is_cached", [True, False])
def test_what_goes_past_the_page_cache_is_written_whole(file: Path, is_cached: bool) -> None:
    assert written(file) != CONTENT  # which brings the old pages into the cache
    write_range(file, 2 * PAGE_BYTES, piece(), is_cached=is_cached)
    assert written(file) == CONTENT


def test_memory_that_is_not_aligned_is_written_all_the_same(file: Path) -> None:
    write_range(file, 2 * PAGE_BYTES, memoryview(b"x" + CONTENT)[1:], is_cached=False)
    assert written(file) == CONTENT


def test_a_file_system_that_refuses_direct_writes_is_written_through_its_cache(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open

    def refusing(path: Path, flags: int, mode: int, **_: object) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return plain(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    write_range(file, 2 * PAGE_BYTES, piece(), is_cached=False)
    assert written(file) == CONTENT


def test_memory_is_used_again_once_it_is_given_back() -> None:
    buffers = Buffers()
    first = buffers.take()
    assert buffers.take() is not first
    buffers.give_back(first)
    assert buffers.take() is first
