"""DEST and DEST/dlio, where other users may write too: their names, and how they are made and reached."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from dlio.io import files
from dlio.io.open_folder import OpenFolder, is_loose

CACHE = "dlio"
CLAIMS = ".claims"
LEASES = ".leases"
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # what is no folder is as little dlio's as what is not there
OWN = "dlio-u"
_OWN = re.compile(rf"{OWN}\d+")
_COPY = re.compile(r"(?P<content_id>[0-9a-f]{32})(?:\.(?P<node>\d{1,7})of(?P<nodes>\d{1,7})x(?P<copies>\d{1,7}))?")


def copy_named(name: str) -> re.Match[str] | None:
    """Returns the parts of a copy's name: content_id, and of a part node, nodes and copies; None for another name."""
    return _COPY.fullmatch(name)


def is_own(dest: Path) -> bool:
    """Returns whether a folder is one that takes the place of DEST for one user."""
    return bool(_OWN.fullmatch(dest.name))


def open_dest(dest: Path) -> OpenFolder:
    """Returns DEST, held open; links are followed in what the user named, and not where dlio named it after a user.

    Raises:
        OSError: it is not there, or not of the user that it is named after.
    """
    if not is_own(dest):
        return OpenFolder.at(dest)
    with OpenFolder.at(dest.parent) as around:
        own = around.below(dest.name)
    if own.owner != int(dest.name.removeprefix(OWN)):
        own.close()
        raise NotADirectoryError(errno.ENOTDIR, f"{dest} is not of the user that it is named after")
    return own


def open_cache(dest: Path) -> OpenFolder:
    """Returns DEST/dlio, held open; no link is followed below DEST.

    Raises:
        OSError: it is not there, or no folder.
    """
    with open_dest(dest) as opened:
        return opened.below(CACHE)


def open_up(dest: Path) -> None:
    """Makes DEST/dlio and its folders of claims and leases, as open to other users as DEST itself is.

    Where others may write, only its owner may rename or remove what lies there: the folders are sticky.

    Raises:
        StorageError: a folder cannot be made, or something else is in its place.
    """
    with files.storage_errors("create", dest / CACHE), _made(dest) as opened:
        if is_loose(opened.status) and opened.owner == os.geteuid():
            os.fchmod(opened.descriptor, stat.S_IMODE(opened.status.st_mode) | stat.S_ISVTX)
        mode = opened.status.st_mode & 0o3777
        mode |= stat.S_ISVTX if mode & 0o022 else 0
        with _opened_to_others(opened, CACHE, mode) as cache:
            for name in (CLAIMS, LEASES):
                _opened_to_others(cache, name, mode).close()


def _made(dest: Path) -> OpenFolder:
    """Returns DEST, held open, made if it is not there."""
    if is_own(dest):
        with OpenFolder.at(dest.parent) as around:
            around.make(dest.name).close()
    else:
        dest.mkdir(parents=True, exist_ok=True)
    return open_dest(dest)


def _opened_to_others(around: OpenFolder, name: str, mode: int) -> OpenFolder:
    """Returns a folder, made with a mode that the umask does not narrow; this user's that is there becomes sticky."""
    is_new = around.look(name) is None
    made = around.make(name)
    before = stat.S_IMODE(made.status.st_mode)
    wanted = mode if is_new else before | (stat.S_ISVTX if before & 0o022 else 0)
    if made.owner == os.geteuid() and wanted != before:
        os.fchmod(made.descriptor, wanted)
    return made
