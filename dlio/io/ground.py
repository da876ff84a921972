"""The folders that dlio writes to: whether others can replace a folder, or what this user makes in it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from dlio.errors import StorageError
from dlio.io import files


def is_loose(status: os.stat_result) -> bool:
    """Returns whether anybody may rename and remove what others have in a folder."""
    return bool(status.st_mode & stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX


def loose_folders(folder: Path) -> Iterator[Path]:
    """Yields a folder, and its parents up to the root, if any user could replace their entries.

    The folders that the path names count, and those around the place that its links lead to; missing ones are left out.

    Raises:
        OSError: the status of one cannot be read.
    """
    named, real = _upwards(str(folder.absolute())), _upwards(os.path.realpath(folder))
    for each in dict.fromkeys(chain(named, real)):
        with suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(each)  # noqa: PTH116  of text, which is joined faster than paths
            if stat.S_ISDIR(status.st_mode) and is_loose(status):
                yield Path(each)


def _upwards(path: str) -> Iterator[str]:
    """Yields an absolute path, and those around it up to the root."""
    yield path
    while len(path) > 1:
        path = os.path.dirname(path)  # noqa: PTH120  of text
        yield path


def check_ground(folder: Path, *names: str) -> None:
    """Refuses a folder in which another user may control what dlio makes under these names; a missing one is fine.

    The owners of the folder and of those around it are trusted. Since nobody else can then replace it, or what this
    user makes in it, it may be used by its path.

    Raises:
        StorageError: anybody may rename the entries of the folder or of one around it, or an entry of such a name is
            not a folder, or belongs to neither this user nor the folder's owner.
    """
    with files.storage_errors("access", folder):
        for loose in loose_folders(folder):
            where = str(folder) if loose == folder else f"{folder}, below {loose}"
            problem = (
                f"anybody could replace what is written to {where}, whose mode is {loose.stat().st_mode & 0o7777:o}"
            )
            raise StorageError(f"{problem}: have its owner set the sticky bit (chmod +t), or name another folder")
        try:
            status = folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        for path in (folder / name for name in names):
            with suppress(FileNotFoundError, NotADirectoryError):
                found = path.lstat()
                if not stat.S_ISDIR(found.st_mode):
                    raise StorageError(f"{path} is not a folder, but dlio needs a folder of that name: remove it")
                if found.st_uid not in (os.geteuid(), status.st_uid):
                    raise StorageError(
                        f"{path} belongs to another user, but dlio needs a folder of that name: remove it"
                    )


def temporary_base() -> Path:
    """Returns the folder in which temporary folders are made: TMPDIR, or else /tmp.

    Raises:
        StorageError: anybody may rename the entries of it or of a folder around it.
    """
    base = Path(tempfile.gettempdir())
    check_ground(base)
    return base


def check_manifests(folder: Path, *names: str) -> None:
    """Refuses another user's manifests in a folder that all may write to: they say which files there are dlio's.

    Raises:
        StorageError: a file of one of the names is neither this user's nor the folder's owner's.
    """
    with files.storage_errors("access", folder), suppress(FileNotFoundError, NotADirectoryError):
        status = folder.stat()
        for path in (folder / name for name in names if status.st_mode & stat.S_IWOTH):
            with suppress(FileNotFoundError):
                if path.lstat().st_uid not in (os.geteuid(), status.st_uid):
                    raise StorageError(f"{path} belongs to another user: give another folder")
