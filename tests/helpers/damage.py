"""Damage to staged copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlio.dataset.manifest import Manifest
from dlio.stage.copies.node_cache import is_being_filled
from tests.helpers.staging import assert_staged, folder_of


def flip(path: Path, position: int = 700) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip,
    "cut off": lambda path: os.truncate(path, 90),
    "too long": lambda path: path.open("ab").write(b"more"),
    "missing": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "a folder's link": lambda path: (path.unlink(), path.symlink_to("/")),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
}


def assert_whole(staged: Manifest, source: Manifest) -> None:
    """The copy holds what the source holds, and nothing else but dlio's own files."""
    assert_staged(staged, source)
    assert not is_being_filled(folder_of(staged))


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """Flips one bit of a file."""
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(content)
