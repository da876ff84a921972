"""Any file or folder as a source: its files as they lie, and a list of what there is (dlio/dataset/tree.py)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

from dlio.dataset import tree
from dlio.dataset.location import NAME, TREE_SUFFIX, folder_of, has_foreign_manifest, names_url
from dlio.dataset.manifest import PARTIAL_NAME, File, Manifest
from dlio.dataset.shard import files_of
from dlio.dataset.tree import Entry
from dlio.errors import ManifestError, StorageError, UsageError
from dlio.io import files, limits
from dlio.io.threads import SideBySide, Threads
from dlio.rights.access import PRIVATE, Access, FolderAccess, has_list
from dlio.stage.copies.base_folder import CONTROL, MARKER, MOST_LEVELS
from dlio.stage.copies.tree import check_reserved
from dlio.stage.sources import MountedFolder, StagingSource, source_of
from dlio.urls import shown

_THREADS = 64  # each stat of a file of a server is a round trip
_NO_FILE = (errno.ENOENT, errno.EACCES)
_AT_ONCE = 16  # files that a thread stats in a row
_WRONG = {error.__name__.encode(): error for error in (UsageError, ManifestError)}  # begins what is no list


def anything(
    given: str | PathLike[str] | Manifest | StagingSource,
    list_once: Callable[[Path, Callable[[], bytes]], bytes] | None = None,
) -> StagingSource:
    """Returns the source of a data set, or of any other file or folder, which is listed, or of a file at a URL.

    Args:
        given: what a user has named.
        list_once: returns the list of a folder, made by the call that it is given, or by another process of the job
            (dlio/stage/meeting/listing.py); None to list it here.

    Raises:
        DlioError: as `source_of`; for a folder without a data set as `TreeFolder`, for a URL as `remote_file`.
    """
    if isinstance(given, str | PathLike) and names_url(given):
        return _at_url(os.fspath(given))
    if isinstance(given, str | PathLike):
        path = _absolute(Path(given))
        with files.storage_errors("access", path):
            if not (path / NAME).exists() and not _is_dataset(path):
                if path.exists():
                    return _tree(path, list_once)
                problem = "is a link to a missing file" if path.is_symlink() else "does not exist"
                raise ManifestError(f"{path} {problem}: give a data set, or any other file or folder")
        try:
            return source_of(given)
        except ManifestError:
            if has_foreign_manifest(folder_of(path)):  # asked last: a data set's own is read once
                return _tree(path, list_once)
            raise
    return source_of(given)


def _tree(path: Path, list_once: Callable[[Path, Callable[[], bytes]], bytes] | None) -> TreeFolder:
    if list_once is None or not path.is_dir():
        return TreeFolder(path)
    found = list_once(path, partial(_told, path))
    for name, error in _WRONG.items():
        if found.startswith(name):
            raise error(found[len(name) :].decode())
    return TreeFolder(path, found)


def _told(path: Path) -> bytes:
    """Returns the list of a folder, or what is wrong in it, which each process of the job is to raise."""
    try:
        return _encoded(path, list(_listed(path)))
    except (UsageError, ManifestError) as error:
        return (type(error).__name__ + error.text).encode(errors="backslashreplace")


def _at_url(url: str) -> StagingSource:
    if "?" in url or "#" in url:
        raise UsageError(
            f"{shown(url)} is given with ? or #. A signed URL expires, and then its copy could not be continued: give "
            "s3://BUCKET/KEY, or download the file and stage that. Write / ? # in a name or password as %2F %3F %23"
        )
    try:
        return source_of(url)
    except (ManifestError, StorageError) as error:  # some servers deny what is not there
        reason = error.__cause__ if isinstance(error, ManifestError) else error
        if getattr(reason, "errno", None) not in _NO_FILE or "/" not in url.partition("://")[2].rstrip("/"):
            raise
        from dlio.stage.sources.remote import remote_file

        try:
            return remote_file(url)
        except StorageError as another:
            if another.errno not in _NO_FILE:
                raise
        if isinstance(error, ManifestError):
            raise ManifestError(f"{error.text}, or of a file") from None
        raise


def _absolute(path: Path) -> Path:
    """Returns an absolute path without `..`, which after a link leads elsewhere than the names say."""
    path = path.absolute()  # a link keeps its name
    if ".." not in path.parts:
        return path
    if path.name == "..":
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(path.parent), path.name)


def _is_dataset(path: Path) -> bool:
    """Returns whether a path is a data set's manifest or shard, what will be a data set, or a staged copy.

    Raises:
        ManifestError, StorageError: a manifest next to a file, which may list it, is damaged or cannot be read.
    """
    folder, copy = folder_of(path), f"{CONTROL}/{MARKER}"
    if folder != path and path.name != NAME and not path.name.startswith("shard-") and not _lists(folder, path.name):
        return False
    is_one = any((folder / name).exists() for name in (NAME, PARTIAL_NAME, copy))
    return is_one or ((path.parent / f"{path.name}{TREE_SUFFIX}").exists() and (path.parent / copy).exists())


def _lists(folder: Path, name: str) -> bool:
    """Returns whether a data set's manifest lists a file next to it; raises ManifestError, StorageError."""
    try:
        return any(file.name == name for file in files_of(Manifest.load(folder).shards))
    except ManifestError:
        if has_foreign_manifest(folder):
            return False
        raise


class TreeFolder:
    """A file or a folder that is copied as it is; see `StagingSource`.

    Args:
        path: absolute; if it is a link, what it points to is copied under the link's name.
        table: the list of what there is, as another process has found it just now; None to look.

    Attributes:
        path: as given.
        table: the list of what there is.

    Raises:
        UsageError: a device, a socket or a pipe lies in it; or it is the root folder.
        ManifestError: it holds more files than dlio lists, or has a name of dlio's own.
        StorageError: a folder cannot be read.
    """

    def __init__(self, path: Path, table: bytes | None = None) -> None:
        self.path, self._table_name = path, f"{path.name}{TREE_SUFFIX}"
        entries = list(_listed(path)) if table is None else tree.decoded(table, path)
        if not entries or entries[0].path != path.name:
            raise ManifestError(f"another process has listed something else than {path}: stage again")
        self.table = _encoded(path, entries) if table is None else table
        self.manifest = tree.manifest_of(entries, self.table, path.parent)
        modified = {entry.path: entry.time for entry in entries if entry.kind == "file"}
        self._folder = MountedFolder(self.manifest, modified)
        self._groups = tree.groups_of(self.manifest)
        self._threads = SideBySide()

    def __str__(self) -> str:
        return str(self.path)

    def _is_table(self, file: File) -> bool:
        return file.name == self._table_name

    def name_of(self, file: File) -> str:
        """Returns the path of a file."""
        if file.name in self._groups:
            return f"{len(self._groups[file.name]):,} small files of {self}"
        return f"the list of {self}" if self._is_table(file) else self._folder.name_of(file)

    def access(self, file: File | None) -> Access:
        """Returns who may enter the copy; its files are this user's alone until they get their own modes."""
        if file is not None and not self._is_table(file):
            return PRIVATE
        with files.storage_errors("access", self.path):
            found = FolderAccess().access(self.path)
            return replace(found, listing=found.mode)

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target`; see `StagingSource`."""
        if self._is_table(file):
            target[:] = self.table[offset : offset + len(target)]
        elif group := self._groups.get(file.name):
            self._threads.each(lambda part: self._folder.read_range(*part), tree.slices(group, target, offset))
        else:
            self._folder.read_range(file, offset, target)

    def close(self) -> None:
        """Closes what `read_range` keeps open; see `StagingSource`."""
        self._threads.close()
        self._folder.close()


def _encoded(path: Path, entries: Sequence[Entry]) -> bytes:
    return tree.encoded(entries, os.path.realpath(path))


def _listed(path: Path) -> Iterator[Entry]:
    """Yields what a path is, and all below it, folders before what lies in them; the names sorted."""
    if not path.name:
        raise UsageError(f"{path} has no name: give a file or folder in it")
    check_reserved(path.name)
    around, name, most = str(path.parent), path.name, limits.manifest_bytes() // tree.LEAST_LINE
    with files.storage_errors("access", path), Threads(_THREADS, "dlio-list") as threads:
        top = _entry(around, name, os.stat(path))  # noqa: PTH116  a link that was named is followed
        found, folders = [top], [top.path] if top.kind == "folder" else []
        while folders:
            listed = threads.each(lambda folder: _names(around, folder), folders)
            names = [inner for some in listed for inner in some]
            if len(found) + len(names) > most:
                raise ManifestError(
                    f"{path} holds more than {most:,} files and folders: stage the folders in it one by one"
                )
            groups = [names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE)]
            level = [each for some in threads.each(lambda some: _entries(around, some), groups) for each in some]
            found += level
            if level and level[0].path.count("/") > MOST_LEVELS:
                raise UsageError(
                    f"{around}/{level[0].path} lies deeper than {MOST_LEVELS} folders: stage a folder in it"
                )
            folders = [entry.path for entry in level if entry.kind == "folder"]
    found.sort(key=lambda entry: entry.path.split("/"))
    yield from found


def _names(around: str, folder: str) -> list[str]:
    path = f"{around}/{folder}"
    with files.storage_errors("list", path):
        return [f"{folder}/{name}" for name in os.listdir(path)]  # noqa: PTH208  names are enough


def _entries(around: str, names: Sequence[str]) -> list[Entry]:
    return [_entry(around, name, os.lstat(f"{around}/{name}")) for name in names]


def _entry(around: str, name: str, status: os.stat_result) -> Entry:
    """Returns the entry of a path with this status; raises UsageError for what cannot be copied, OSError."""
    path, mode = f"{around}/{name}", status.st_mode
    with files.storage_errors("access", path):
        target = os.readlink(path) if stat.S_ISLNK(mode) else ""  # noqa: PTH115  of text
        if mode & 0o070 and not stat.S_ISLNK(mode) and (mode >> 3 & ~mode & 0o007) and has_list(path):
            mode &= ~0o070  # with a list of rights these bits are not the group's
    try:
        return Entry.of(
            name, mode, time=status.st_mtime_ns, group=status.st_gid, num_bytes=status.st_size, target=target
        )
    except ValueError:
        kind = next((known for is_one, known in _KINDS if is_one(mode)), "of an unknown kind")
        advice = "only files, folders and links are staged: remove it, or stage the others without it"
        raise UsageError(f"{path} is {kind}: {advice}") from None


_KINDS = [
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
]
