"""Folders of images and the folders below them: each is listed once, links are followed, loops are refused."""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlio.errors import StorageError
from dlio.formats.payloads.paths import IMAGE_EXTENSIONS
from dlio.io.files import storage_errors
from dlio.pack import pace
from dlio.pack.listing.base import Refused
from dlio.pack.listing.keys import printable
from dlio.pack.prefetch import Depth, idle_clock, side_by_side

EXTENSIONS = IMAGE_EXTENSIONS
_NAME_BYTES = 100
_KINDS = 10  # of files that are left out, shown
_SUFFIX = 8  # characters, at most
_NAMED = 3  # files of a kind that are left out
_Content = tuple[list[str], list[str], list[str]]  # the sorted names of folders, images, other files
_Identity = tuple[int, int]  # device and inode of a folder, the same whatever links lead to it


@dataclass(slots=True)
class _Tree:
    """A folder and the folders below it, as far as they are listed.

    Attributes:
        images: for each folder its path below the root, and the names of its images, joined by `/` to save memory.
        refused: the folders that are refused, and why: some lead back to a folder above them.
        num_waiting: the number of known folders that are not listed yet.
    """

    images: list[tuple[str, str]] = field(default_factory=list)
    refused: Refused = field(default_factory=list)
    num_waiting: int = 1


def without_images(folder: Path | str) -> str:
    """Returns the problem of a class folder without images."""
    return (
        f"{folder} has no images ({' '.join(EXTENSIONS)}) to pack: move it away, or give the path of an archive or "
        "other source in it"
    )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The files next to the images, which are not packed: for each kind their number and the first few paths."""

    kinds: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, folder: str, names: Iterable[str], kind: str = "") -> None:
        """Adds the files in a folder; hidden ones do not count. The kind is by default a name's suffix."""
        for name in names:
            own = kind or _kind(name)
            if not name.startswith("."):
                self.counts[own] += 1
                if self.counts[own] <= _NAMED:
                    self.kinds.setdefault(own, []).append(printable(os.path.normpath(f"{folder}/{name}")))

    def __str__(self) -> str:
        """Returns all in a line, such as `2 .gif (cat/g.gif, cat/h.gif)`; '' for nothing."""
        texts = {kind: ", ".join(named) + ", ..." * (self.counts[kind] > _NAMED) for kind, named in self.kinds.items()}
        shown = [kind for kind, _ in self.counts.most_common(_KINDS)]
        more = [f"and {len(texts) - _KINDS:,} more kinds"] if len(texts) > _KINDS else []
        return "; ".join([*(f"{self.counts[kind]:,} {kind} ({texts[kind]})" for kind in texts if kind in shown), *more])


def _kind(name: str) -> str:
    """Returns the suffix of a file's name; '' for a number or a long one, so that there are few kinds."""
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    return f".{suffix}" if suffix and len(suffix) <= _SUFFIX and not suffix.isdecimal() else "without a suffix"


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to list, and the identities of the folders above it."""

    path: Path
    tree: _Tree
    above: frozenset[_Identity | None]


def walk_each(
    root: Path, folders: Sequence[str], refused: Refused, left_out: LeftOut | None = None
) -> Iterator[list[tuple[str, list[str]]]]:
    """Yields for each folder below `root` the folders in its tree: the path below `root`, and the sorted image names.

    The trees are listed level by level, all together, so that many folders are listed at a time on slow storage.
    Folders that lead back to a folder above them, and those that this user may not list, are added to `refused`; files
    that are not images to `left_out`.

    Raises:
        StorageError: a folder cannot be listed.
    """
    trees, top = deque(_Tree() for _ in folders), frozenset[_Identity | None]([_identity(root)] if any(folders) else ())
    level = [_Folder(root / name, tree, top) for name, tree in zip(folders, trees, strict=True)]
    while level:
        below: list[_Folder] = []
        for folder, found in zip(level, side_by_side(_list, level, Depth(idle_clock), _num_bytes), strict=True):
            below += _add(root, folder, found)
            if left_out is not None and found.others:
                left_out.add(os.path.relpath(folder.path, root), found.others)
            while trees and not trees[0].num_waiting:
                tree = trees.popleft()
                refused += sorted(tree.refused, key=lambda entry: entry[0].split("/"))
                yield [(path, names.split("/") if names else []) for path, names in tree.images]
        level = below


def images_below(root: Path, refused: Refused, left_out: LeftOut | None = None) -> list[str]:
    """Returns the paths of all images below `root`, folder by folder; arguments and errors as `walk_each`."""
    [tree] = walk_each(root, [""], refused, left_out)  # "" is `root` itself
    return [image if folder == "." else f"{folder}/{image}" for folder, images in tree for image in images]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a folder holds, by sorted names; nothing if it leads back to a folder above it, or may not be listed."""

    own: _Identity | None
    folders: Sequence[str] = ()
    images: Sequence[str] = ()
    others: Sequence[str] = ()
    problem: str = ""


def _list(folder: _Folder) -> _Found:
    try:
        own = _identity(folder.path)
        if own in folder.above:
            problem = f"{folder.path} points to a folder above it: remove the symbolic link"
            return _Found(own, problem=problem)
        return _Found(own, *look(folder.path))
    except StorageError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise
        return _Found(None, problem=error.text)


def _add(root: Path, folder: _Folder, found: _Found) -> list[_Folder]:
    """Adds what a folder contains to its tree, and returns the folders to list next."""
    tree, below = folder.tree, os.path.relpath(folder.path, root)
    tree.num_waiting += len(found.folders) - 1
    if found.problem:
        tree.refused.append((printable(below), found.problem))
    else:
        tree.images.append((below, "/".join(found.images)))
    above = folder.above | {found.own}
    return [_Folder(folder.path / name, tree, above) for name in found.folders]


def _num_bytes(found: _Found) -> int:
    """Returns about how many bytes of memory the lists of names take."""
    return _NAME_BYTES * (1 + len(found.folders) + len(found.images) + len(found.others))


def _identity(folder: Path) -> _Identity:
    pace.spend(1)
    with storage_errors("list", folder):
        status = folder.stat()
    return status.st_dev, status.st_ino


def folders_in(folder: Path) -> list[str]:
    """Returns the sorted names of the folders in a folder; raises StorageError if it cannot be listed."""
    return look(folder)[0]


def images_in(folder: Path) -> list[str]:
    """Returns the sorted names of the images in a folder; raises StorageError if it cannot be listed."""
    return look(folder)[1]


def look(folder: Path) -> _Content:
    """Returns the sorted names of the folders, images and other files in a folder; raises StorageError."""
    pace.spend(pace.FILE_OPERATIONS)
    with storage_errors("list", folder), os.scandir(folder) as found:
        entries = list(found)
    folders = {entry.name for entry in entries if not entry.is_file(follow_symlinks=False) and is_folder(entry)}
    images = [entry.name for entry in entries if entry.name.lower().endswith(EXTENSIONS)]
    rest = set() if len(images) == len(entries) else {entry.name for entry in entries} - folders - set(images)
    return sorted(folders), sorted(images if folders.isdisjoint(images) else set(images) - folders), sorted(rest)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a folder, or a link to one; false for a link that leads to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False
