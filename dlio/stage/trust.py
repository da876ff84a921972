"""Whose copies are relied on: one's own, and root's once they are complete.

What another user made is not, since its owner can change it after any check, nor what lies in another user's folder,
which its owner can replace. Where such a folder, copy or claim is in the way, DEST/dlio-u<uid> takes the place of DEST.

So each folder from DEST/dlio to the copy must be this user's or root's, no link, and sticky where others may write;
then nobody else can put anything in its place, and it may be used by its path.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlio import files
from dlio.errors import StorageError
from dlio.filesystems import filesystem_of
from dlio.manifest import File
from dlio.open_folder import check_ground, is_loose
from dlio.stage.folder import StagedFolder
from dlio.stage.ground import CACHE, CLAIMS, LEASES, OWN, is_own


def own_dest(dest: Path, user: int | None = None) -> Path:
    """Returns the folder that a user, by default this one, has in place of DEST where that is not to be relied on."""
    return dest / f"{OWN}{os.geteuid() if user is None else user}"


def is_safe(folder: StagedFolder, user: int) -> bool:
    """Returns whether none but root and the user can put another copy in the place of this one, or change it.

    Raises:
        StorageError: it cannot be looked at.
    """
    users = {user, 0}
    cache = folder.dest / CACHE
    own = [folder.dest] if is_own(folder.dest) else []
    shared = all(_is_of(path, users) for path in (*own, cache, cache / CLAIMS, cache / LEASES))
    return shared and all(_is_of(path, users, shut=True) for path in (folder.path, cache / CLAIMS / folder.copy))


def is_replaceable(dest: Path) -> bool:
    """Returns whether anybody can put another folder in the place of DEST/dlio.

    Raises:
        StorageError: DEST cannot be looked at.
    """
    with files.storage_errors("look at", dest):
        try:
            return is_loose((dest.parent if is_own(dest) else dest).stat())
        except FileNotFoundError:
            return False


def folder_for_us(dest: Path, copy: str, wanted: Sequence[File]) -> StagedFolder:
    """Returns the folder in which this user has the copy, or is to make it; or root's, if it holds the files `wanted`.

    Raises:
        StorageError: anybody may replace what lies in DEST; the folders of both names are other users', or can be
            changed by them; or they cannot be looked at.
    """

    def serves(folder: StagedFolder, user: int) -> bool:
        return is_safe(folder, user) and (_is_of(folder.path, {user}) or folder.holds(wanted))

    if is_replaceable(dest) and dest.stat().st_uid != os.geteuid():
        check_ground(dest)
    shared = StagedFolder(dest, copy, user=os.geteuid())
    if serves(shared, os.geteuid()):
        return shared
    us = _uid_on(dest / CACHE)
    if serves(shared, us):
        return replace(shared, user=us)
    own = StagedFolder(own_dest(dest, us), copy, user=us)
    if _is_of(own.dest, {us}) and serves(own, us):
        return own
    raise StorageError(
        f"{own.dest} is another user's, or open to others' changes: remove it, or stage to another folder"
    )


def check_safe(folder: StagedFolder) -> None:
    """Makes sure that what was found or made in a folder of `folder_for_us` was this user's or root's all the time.

    Raises:
        StorageError: another user has put something in its place meanwhile.
    """
    if folder.user is not None and not is_safe(folder, folder.user):
        raise StorageError(f"another user has put something in the place of {folder.path}: stage again")


def _is_of(path: Path, users: set[int], *, shut: bool = False) -> bool:
    """Returns whether a path is a folder of one of the users that others cannot empty, or change if it is to be `shut`.

    A path where nothing is yet is.
    """
    with files.storage_errors("look at", path):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False
    is_open = status.st_mode & 0o022 and (shut or not status.st_mode & stat.S_ISVTX)
    is_theirs = stat.S_ISDIR(status.st_mode) and status.st_uid in users and not is_open
    return is_theirs and not _is_served(path, status)


def _is_served(path: Path, status: os.stat_result) -> bool:
    """Returns whether a folder is where a FUSE file system is mounted: its user's process says what is whose."""
    return status.st_dev != path.parent.stat().st_dev and filesystem_of(path).type.startswith("fuse")


def _uid_on(folder: Path) -> int:
    """Returns the user that owns what this process makes in `folder`: on a squashed NFS not the one it runs as."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_uid
    except OSError:
        return os.geteuid()
