"""Files that a broadcast writes past the page cache, piece by piece."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.stage.transfer import new_file
from dlio.stage.transfer.new_file import PAGE_BYTES, NewFile, page_buffer
from tests.helpers.staging import MiB

BUFFER = page_buffer()
ODD_BYTES = 1000  # no file system takes such pieces past its page cache
sizes = st.lists(st.sampled_from([1, 7, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 10_000, 4 * MiB]), max_size=5)


@pytest.fixture(params=["direct", "refused", "refused later"])
def folder(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a file system that takes O_DIRECT, on one that does not, and on one that wants more than pages."""
    system_open = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return system_open(path, flags, mode)

    if request.param == "refused":
        monkeypatch.setattr(os, "open", refusing)
    if request.param == "refused later":
        monkeypatch.setattr(new_file, "PAGE_BYTES", ODD_BYTES)
    return tmp_path


@given(sizes, st.booleans())
def test_pieces_of_any_size_become_one_file(folder: Path, sizes: list[int], zeros: bool) -> None:
    pieces = [bytes(size) if zeros and size % 2 == 0 else random.Random(size).randbytes(size) for size in sizes]
    new = NewFile(folder / "below" / "file", BUFFER)
    for piece in pieces:
        new.append(memoryview(piece))
    new.close()
    assert new.path.read_bytes() == b"".join(pieces)


def test_a_full_disk_is_reported_and_abandoning_frees_its_room(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=10m")
    new = NewFile(disk / "file", BUFFER)
    piece = memoryview(random.Random(0).randbytes(4 * MiB))
    with pytest.raises(OSError, match="No space left"):
        for _ in range(4):
            new.append(piece)
    new.path.unlink()
    new.abandon()
    (disk / "next").write_bytes(bytes(9 * MiB))
