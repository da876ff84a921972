"""Folders of images and the folders below them: each is listed once, links are followed, loops are refused."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlio.io.files import storage_errors
from dlio.pack import pace
from dlio.pack.listing.base import Refused
from dlio.pack.listing.keys import printable
from dlio.pack.prefetch import Depth, idle_clock, side_by_side

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's
_NAME_BYTES = 100
_Identity = tuple[int, int]  # device and inode of a folder, the same whatever links lead to it


@dataclass(slots=True)
class _Tree:
    """A folder and the folders below it, as far as they are listed.

    Attributes:
        images: for each folder its path below the root, and the names of its images, joined by `/` to save memory.
        loops: the folders that lead back to a folder above them, and why they are refused.
        num_waiting: the number of known folders that are not listed yet.
    """

    images: list[tuple[str, str]] = field(default_factory=list)
    loops: Refused = field(default_factory=list)
    num_waiting: int = 1


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to list, and the identities of the folders above it."""

    path: Path
    tree: _Tree
    above: frozenset[_Identity]


def walk_each(root: Path, folders: Sequence[str], refused: Refused) -> Iterator[list[tuple[str, list[str]]]]:
    """Yields for each folder below `root` the folders in its tree: the path below `root`, and the sorted image names.

    The trees are listed level by level, all together, so that many folders are listed at a time on slow storage.
    Folders that lead back to a folder above them are added to `refused`.

    Raises:
        StorageError: a folder cannot be listed.
    """
    trees, top = deque(_Tree() for _ in folders), frozenset([_identity(root)])
    level = [_Folder(root / name, tree, top) for name, tree in zip(folders, trees, strict=True)]
    while level:
        below: list[_Folder] = []
        for folder, found in zip(level, side_by_side(_list, level, Depth(idle_clock), _num_bytes), strict=True):
            below += _add(root, folder, *found)
            while trees and not trees[0].num_waiting:
                tree = trees.popleft()
                refused += sorted(tree.loops, key=lambda loop: loop[0].split("/"))
                yield [(path, names.split("/") if names else []) for path, names in tree.images]
        level = below


def _list(folder: _Folder) -> tuple[_Identity, list[str], list[str]]:
    """Returns the identity of a folder, and the names of the folders and images in it; none of a loop."""
    own = _identity(folder.path)
    return (own, [], []) if own in folder.above else (own, *_look(folder.path))


def _add(root: Path, folder: _Folder, own: _Identity, names: list[str], images: list[str]) -> list[_Folder]:
    """Adds what a folder contains to its tree, and returns the folders to list next."""
    tree, below = folder.tree, os.path.relpath(folder.path, root)
    tree.num_waiting += len(names) - 1
    if own in folder.above:
        reason = f"{folder.path} leads back to a folder above it: remove the symbolic link"
        tree.loops.append((printable(below), reason))
    else:
        tree.images.append((below, "/".join(images)))
    above = folder.above | {own}
    return [_Folder(folder.path / name, tree, above) for name in names]


def _num_bytes(found: tuple[_Identity, list[str], list[str]]) -> int:
    """Returns about how many bytes of memory the lists of names take."""
    return _NAME_BYTES * (1 + len(found[1]) + len(found[2]))


def _identity(folder: Path) -> _Identity:
    pace.take(1)
    with storage_errors("list", folder):
        status = folder.stat()
    return status.st_dev, status.st_ino


def folders_in(folder: Path) -> list[str]:
    """Returns the sorted names of the folders in a folder; raises StorageError if it cannot be listed."""
    return _look(folder)[0]


def images_in(folder: Path) -> list[str]:
    """Returns the sorted names of the images in a folder; raises StorageError if it cannot be listed."""
    return _look(folder)[1]


def _look(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the sorted names of the folders and of the images in a folder."""
    pace.take(pace.FILE_OPERATIONS)
    with storage_errors("list", folder), os.scandir(folder) as found:
        entries = list(found)
    folders = {entry.name for entry in entries if _is_folder(entry)}
    images = [entry.name for entry in entries if entry.name.lower().endswith(EXTENSIONS)]
    return sorted(folders), sorted(images if folders.isdisjoint(images) else set(images) - folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder, or a link to one; false for a link that leads to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False
