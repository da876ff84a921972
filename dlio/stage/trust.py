"""Whose copies are relied on: one's own, and root's once they are complete.

What another user made is not, since its owner can change it after any check, nor what lies in another user's folder,
which its owner can replace. Where such a folder, copy or claim is in the way, DEST/dlio-u<uid> takes the place of DEST.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dlio import files
from dlio.errors import StorageError
from dlio.manifest import File
from dlio.stage.folder import StagedFolder

OWN = "dlio-u"


def own_dest(dest: Path, user: int | None = None) -> Path:
    """Returns the folder that a user, by default this one, has in place of DEST where that is not to be relied on."""
    return dest / f"{OWN}{os.geteuid() if user is None else user}"


def is_safe(folder: StagedFolder, user: int) -> bool:
    """Returns whether none but root and the user can put another copy in the place of this one.

    Raises:
        StorageError: it cannot be looked at.
    """
    return _owners(folder.dest / "dlio") <= {user, 0} and _makers(folder) <= {user, 0}


def folder_for_us(dest: Path, copy: str, wanted: Sequence[File]) -> StagedFolder:
    """Returns the folder in which this user has the copy, or is to make it; or root's, if it holds the files `wanted`.

    Raises:
        StorageError: the folders of both names are other users', or cannot be looked at.
    """

    def serves(folder: StagedFolder, user: int) -> bool:
        return is_safe(folder, user) and (_makers(folder) <= {user} or folder.holds(wanted))

    shared = StagedFolder(dest, copy)
    if serves(shared, os.geteuid()):
        return shared
    us = _uid_on(dest / "dlio")
    if serves(shared, us):
        return shared
    own = StagedFolder(own_dest(dest, us), copy)
    if _owners(own.dest) <= {us} and serves(own, us):
        return own
    raise StorageError(f"{own.dest} is another user's, who took this user's name for it: stage to another folder")


def _makers(folder: StagedFolder) -> set[int]:
    """Returns the users who made a copy, and the claims on it, as far as these are there."""
    return _owners(folder.path, folder.dest / "dlio" / ".claims" / folder.copy)


def _owners(*paths: Path) -> set[int]:
    """Returns the owners of the paths that are there."""
    found = set()
    for path in paths:
        with files.storage_errors("look at", path), suppress(FileNotFoundError):
            found.add(path.lstat().st_uid)
    return found


def _uid_on(folder: Path) -> int:
    """Returns the user that owns what this process makes in `folder`: on a squashed NFS not the one it runs as."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_uid
    except OSError:
        return os.geteuid()
