"""What a copy of any file or folder needs besides its files: groups of small files, links, modes and times.

Small files come as one group. They are written under their final names, and put together again for other nodes. None is
synced alone: all are, at once, before the copy is published. So a process that continues the copy of another one reads
them again, to find what a loss of power has taken.

Once all files have arrived, the rest is made: empty folders, the modes and times of all, and last of all the
links. It is done below the copy, which only this user can change, and nothing is done through a link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dlio.dataset.manifest import NAME, File, Manifest
from dlio.dataset.tree import Entry, entries_of, slices
from dlio.errors import ManifestError, StorageError
from dlio.io import files, world
from dlio.io.filesystems import sync_filesystem
from dlio.io.threads import in_threads
from dlio.rights.access import Access
from dlio.stage.copies.base_folder import CONTROL, MOST_LEVELS
from dlio.stage.copies.learned import Learned

_THREADS = 16
_MOST_GATHERED = 8  # groups in memory, of up to 4 MiB: other nodes ask for the same one at about the same time
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_group(root: Path, group: Sequence[File], data: memoryview, aside: Path) -> list[str]:
    """Writes the files of a group, whose folders are present, and returns their digests.

    A file that is there is replaced by a rename: a process that counts as lost, but still runs, must not empty a
    file of a copy that another one has published.

    Args:
        root: the folder of the copy.
        group: the files.
        data: the content of all, one after another.
        aside: the path of a file that is to replace another one, until it does.

    Raises:
        StorageError: the file system refused; what is there has no digest, and is written again.
    """
    around, digests = str(root), []
    for file, _, part in slices(group, data):
        path = f"{around}/{file.name}"
        try:
            try:
                _write(path, part)
            except FileExistsError:
                aside.unlink(missing_ok=True)
                _write(aside, part)
                world.replace(aside, path)
        except OSError:
            with files.storage_errors("write", path):
                raise
        digests.append(files.digest_bytes(part))
    return digests


def _write(path: str | Path, data: memoryview) -> None:
    descriptor = world.open(path, _NEW, 0o600)
    try:
        files.write_all(descriptor, 0, data)
    finally:
        os.close(descriptor)


def is_intact(root: Path, group: Sequence[File], learned: Learned) -> bool:
    """Returns whether the files of a group have the digests that were noted; raises StorageError."""
    data = _gathered(root, group)
    return all(files.digest_bytes(part) == learned.get(file.name) for file, _, part in slices(group, data))


def _gathered(root: Path, group: Sequence[File]) -> memoryview:
    """Returns the content of all files of a group, one after another; zeros for what is missing."""
    data = memoryview(bytearray(sum(file.num_bytes for file in group)))
    for file, _, part in slices(group, data):
        path = f"{root}/{file.name}"
        with files.storage_errors("read", path):
            descriptor = world.open(path, _OLD)
            try:
                files.fill(descriptor, 0, part)
            finally:
                os.close(descriptor)
    return data


class Groups:
    """The groups of a copy; for any number of threads.

    Args:
        root: the folder of the copy.
        groups: the files of each group, by its name.
        learned: takes the digests of what is written.
        unfinished: the folder of this process's unfinished files.
    """

    def __init__(self, root: Path, groups: Mapping[str, Sequence[File]], learned: Learned, unfinished: Path) -> None:
        self._root, self._groups, self._learned, self._unfinished = root, groups, learned, unfinished
        self._lock = world.lock()
        self._in_memory: OrderedDict[str, int] = OrderedDict()

    def write(self, name: str, data: memoryview) -> None:
        """Writes the files of a group, then notes their digests; raises StorageError."""
        aside = self._unfinished / name.replace("/", ".")  # no file's name
        self._learned.note(name, write_group(self._root, self._groups[name], data, aside))

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Yields a descriptor to read a whole group from, put together; raises StorageError, OSError."""
        with self._lock:
            if name not in self._in_memory:
                self._in_memory[name] = _in_memory(_gathered(self._root, self._groups[name]))
            self._in_memory.move_to_end(name)
            while len(self._in_memory) > _MOST_GATHERED:
                os.close(self._in_memory.popitem(last=False)[1])
            descriptor = os.dup(self._in_memory[name])
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Forgets what is in memory; nothing else may be called at the same time."""
        while self._in_memory:
            os.close(self._in_memory.popitem()[1])


def _in_memory(data: memoryview) -> int:
    descriptor = os.memfd_create("dlio-group", os.MFD_CLOEXEC)
    try:
        files.write_all(descriptor, 0, data)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def restore(manifest: Manifest, root: Path) -> None:
    """Makes what the list of a copy holds besides files, and gives all their modes and times; may be done again.

    Args:
        manifest: of the copy.
        root: the folder of the copy, which has all its files.

    Raises:
        ManifestError: the list is damaged, or would change what is dlio's own in the copy.
        StorageError: the file system refused.
    """
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
