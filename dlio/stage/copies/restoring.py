"""Finishing the copy of a file or folder: its links, its empty folders, and the modes and times of all.

The files are there already. All is done below the copy, which only this user can change; links are made last of all,
and nothing is done through one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dlio.dataset.location import TREE
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.tree import Entry, entries_of
from dlio.errors import ManifestError, StorageError
from dlio.io import files
from dlio.io.filesystems import sync_filesystem
from dlio.io.threads import in_threads
from dlio.stage.copies.access import Access
from dlio.stage.copies.base_folder import CONTROL, MOST_LEVELS
from dlio.stage.copies.learned import Learned

_THREADS = 16


def restore(manifest: Manifest, root: Path) -> None:
    """Makes what the list of a copy holds besides files, and gives all their modes and times; may be done again.

    Args:
        manifest: of the copy; of a data set, nothing is done.
        root: the folder of the copy, which has all its files.

    Raises:
        ManifestError: the list is damaged, or would change what is dlio's own in the copy.
        StorageError: the file system refused.
    """
    if manifest.format != TREE:
        return
    entries = entries_of(manifest, root)
    check_reserved(entries[0].path)
    if deep := [entry.path for entry in entries if entry.path.count("/") > MOST_LEVELS]:
        raise ManifestError(f"{root / deep[0]} lies deeper than {MOST_LEVELS} folders, and could not be removed again")
    with files.storage_errors("restore", root):
        folders = [entry for entry in entries if entry.kind == "folder"]
        for entry in folders:
            _make_folder(root, entry)
        for entry in entries:
            if entry.kind == "file":
                _give(root, entry)
        for entry in entries:
            if entry.kind == "link":
                _make_link(root, entry)
        for entry in reversed(folders):  # what is made in a folder changes its time
            _give(root, entry)
    _sync_all(root, entries)


def _sync_all(root: Path, entries: Sequence[Entry]) -> None:
    """Waits until a whole copy is on the disk; if that fails, no later run trusts what is here.

    Linux counts pages that it could not write as clean: they can be read, and the next sync is a success.
    """
    try:
        if not sync_filesystem(root):
            synced = [entry for entry in entries if entry.kind != "link"]
            in_threads(_THREADS, partial(_sync, root), synced, "dlio-sync")
            files.sync_folder(root)
    except StorageError:
        Learned(root).forget()
        raise


def _sync(root: Path, entry: Entry) -> None:
    path = root / entry.path
    if entry.kind == "folder":
        files.sync_folder(path)
        return
    files.sync_file(path)
    with files.storage_errors("access", path), path.open("rb", buffering=0) as file:
        files.check_length(path, file.fileno(), entry.num_bytes)


def check_reserved(name: str) -> None:
    """Raises ManifestError if what is staged is named as what dlio itself has in a copy."""
    if name in (NAME, CONTROL):
        raise ManifestError(f"{name!r} is a name that dlio itself uses in a copy: give the file or folder another name")


def _make_folder(root: Path, entry: Entry) -> None:
    path = root / entry.path
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise StorageError(
                errno.ENOTDIR, f"{path} exists where the copy needs a folder: run dlio clean, then stage again"
            ) from None
        path.chmod(0o700)  # of an earlier try


def _make_link(root: Path, entry: Entry) -> None:
    path = f"{root}/{entry.path}"
    if not (os.path.islink(path) and os.readlink(path) == entry.target):  # noqa: PTH114, PTH115  of text
        if os.path.lexists(path):
            os.unlink(path)  # noqa: PTH108  of text
        os.symlink(entry.target, path)  # noqa: PTH211  of text
    os.utime(path, ns=(entry.time, entry.time), follow_symlinks=False)


def _give(root: Path, entry: Entry) -> None:
    path = f"{root}/{entry.path}"
    Access(entry.mode, entry.group).give_file(path)
    os.utime(path, ns=(entry.time, entry.time), follow_symlinks=False)
