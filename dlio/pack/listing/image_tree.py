"""Folders of images, and the folders below them: found with one look at each, links followed, loops refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from dlio.io.files import storage_errors
from dlio.pack import pace
from dlio.pack.listing.keys import printable
from dlio.pack.prefetch import Depth, idle_clock, side_by_side

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
_NAME_BYTES = 100


def walk(
    root: Path, folder: Path, refused: list[tuple[str, str]], above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, list[str]]]:
    """Yields `folder` and each one below it, as a path below `root`, and the names of the images in it, sorted.

    A folder comes before those in it, which come sorted by name. To `refused` is added what leads back to a folder that
    it is in; `above` are those that `folder` is in, by identity.

    Raises:
        StorageError: a folder cannot be listed.
    """
    below, own = os.path.relpath(folder, root), identity(folder)
    if own in above:
        refused.append((printable(below), f"{folder} leads back to a folder above it: remove the symbolic link"))
        return
    folders, images = _look(folder)
    yield below, images
    for name in folders:
        yield from walk(root, folder / name, refused, above | {own})


def walk_each(
    root: Path, folders: Iterable[Path], refused: list[tuple[str, str]], above: frozenset[tuple[int, int]]
) -> Iterator[list[tuple[str, list[str]]]]:
    """Yields of each of these folders what `walk` does, as a list; several are listed at a time on slow storage."""

    def look(folder: Path) -> tuple[list[tuple[str, list[str]]], list[tuple[str, str]]]:
        own: list[tuple[str, str]] = []
        return list(walk(root, folder, own, above)), own

    for found, refused_there in side_by_side(look, folders, Depth(idle_clock), _num_bytes):
        refused += refused_there
        yield found


def _num_bytes(looked: tuple[list[tuple[str, list[str]]], list[tuple[str, str]]]) -> int:
    """Returns about how many bytes of memory a list of names takes."""
    return sum(_NAME_BYTES * (1 + len(names)) for _, names in looked[0])


def identity(folder: Path) -> tuple[int, int]:
    """Returns what tells a folder from all others, by whatever links it was come to."""
    pace.take(1)
    with storage_errors("list", folder):
        status = folder.stat()
    return status.st_dev, status.st_ino


def folders_in(folder: Path) -> list[str]:
    """Returns the names of the folders in a folder, sorted; raises StorageError where it cannot be listed."""
    return _look(folder)[0]


def images_in(folder: Path) -> list[str]:
    """Returns the names of the images in a folder, sorted; raises StorageError where it cannot be listed."""
    return _look(folder)[1]


def _look(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the names of the folders and of the images in a folder, each sorted."""
    pace.take(pace.FILE_OPERATIONS)
    with storage_errors("list", folder), os.scandir(folder) as found:
        entries = list(found)
    folders = {entry.name for entry in entries if _is_folder(entry)}
    images = [entry.name for entry in entries if entry.name.lower().endswith(EXTENSIONS)]
    return sorted(folders), sorted(images if folders.isdisjoint(images) else set(images) - folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Tells whether an entry is a folder, or a link to one; a link that leads to itself is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False
