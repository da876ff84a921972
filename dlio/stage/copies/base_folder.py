"""DEST and DEST/dlio, where other users may write too: the names in them, and how they are made and opened."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.errors import ManifestError
from dlio.io import files
from dlio.io.ground import is_loose
from dlio.io.open_folder import SHUT, OpenFolder, TakenError

CACHE = "dlio"
CLAIMS = ".claims"
LEASES = ".leases"
CONTROL = ".dlio"  # in a copy
MARKER = "copy.json"  # in CONTROL
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # a file or a link in its place is not dlio's either
OWN = "dlio-u"
OWN_NAME = re.compile(rf"{OWN}\d+")
MOST_LEVELS = 24  # of folders within a copy; `clean` removes 32, those of dlio included
_COPY = re.compile(r"(?P<content_id>[0-9a-f]{32})(?:\.(?P<node>\d{1,7})of(?P<nodes>\d{1,7})x(?P<copies>\d{1,7}))?")


def copy_named(name: str) -> re.Match[str] | None:
    """Returns the groups content_id, node, nodes and copies of a copy's name; None for any other name."""
    return _COPY.fullmatch(name)


def may_change(owner: int) -> bool:
    """Returns whether this user may change what belongs to `owner`: the owner may, and root."""
    return os.geteuid() in (0, owner)


def is_closed(status: os.stat_result, users: Collection[int], *, shut: bool = False) -> bool:
    """Returns whether this is a folder of one of the users that no other user can empty; if `shut`, nor change."""
    is_open = status.st_mode & 0o022 and (shut or not status.st_mode & stat.S_ISVTX)
    return stat.S_ISDIR(status.st_mode) and status.st_uid in users and not is_open


def is_own(dest: Path) -> bool:
    """Returns whether a folder is one that a user has instead of DEST."""
    return bool(OWN_NAME.fullmatch(dest.name))


def open_dest(dest: Path) -> OpenFolder:
    """Returns DEST, held open; links are followed in a path that the user named, not in one that dlio named.

    Raises:
        OSError: it does not exist, or is named after a user who does not own it.
    """
    if not is_own(dest):
        return OpenFolder.at(dest)
    with OpenFolder.at(dest.parent) as around:
        own = around.below(dest.name)
    if own.owner != int(dest.name.removeprefix(OWN)):
        own.close()
        raise NotADirectoryError(errno.ENOTDIR, f"{dest} does not belong to the user that it is named after")
    return own


def open_cache(dest: Path) -> OpenFolder:
    """Returns DEST/dlio, held open; no link is followed below DEST.

    Raises:
        OSError: it does not exist, or is not a folder.
    """
    with open_dest(dest) as opened:
        return opened.below(CACHE)


def open_up(dest: Path) -> None:
    """Makes DEST/dlio and its folders of claims and leases, as open to other users as DEST itself is.

    If others may write, the folders are sticky, so only the owner of an entry may rename or remove it.

    Raises:
        TakenError: another user has made a folder, and has not opened it to others, or not yet.
        StorageError: a folder cannot be made, or something else has its name.
    """
    with files.storage_errors("create", dest / CACHE), _made(dest) as opened:
        if is_loose(opened.status) and opened.owner == os.geteuid():
            os.fchmod(opened.descriptor, stat.S_IMODE(opened.status.st_mode) | stat.S_ISVTX)
        mode = opened.status.st_mode & 0o3777
        mode |= stat.S_ISVTX if mode & 0o022 else 0
        try:
            with _opened_to_others(opened, CACHE, mode) as cache:
                for name in (CLAIMS, LEASES):
                    _opened_to_others(cache, name, mode).close()
        except PermissionError as error:
            status = opened.look(CACHE)
            if status is None or status.st_uid == os.geteuid():
                raise
            raise TakenError(errno.EACCES, f"{dest / CACHE} {SHUT}") from error


def _made(dest: Path) -> OpenFolder:
    """Returns DEST, held open; it is made if it does not exist."""
    if is_own(dest):
        with OpenFolder.at(dest.parent) as around:
            around.make(dest.name).close()
    else:
        dest.mkdir(parents=True, exist_ok=True)
    return open_dest(dest)


def _opened_to_others(around: OpenFolder, name: str, mode: int) -> OpenFolder:
    """Returns a folder, made with a mode that ignores the umask; one of this user's that exists becomes sticky."""
    is_new = around.look(name) is None
    made = around.make(name)
    before = stat.S_IMODE(made.status.st_mode)
    wanted = mode if is_new else before | (stat.S_ISVTX if before & 0o022 else 0)
    if made.owner == os.geteuid() and wanted != before:
        os.fchmod(made.descriptor, wanted)
    return made


def marker_of(copy: OpenFolder) -> os.stat_result | None:
    """Returns the status of a copy's marker; None if its owner has made none."""
    try:
        with copy.below(CONTROL) as control:
            status = control.look(MARKER)
            is_owners = status is not None and stat.S_ISREG(status.st_mode) and status.st_uid == copy.owner
            return status if is_owners and control.owner == copy.owner else None
    except OSError:
        return None


def check_names(manifest: Manifest) -> None:
    """Refuses a data set whose files would overwrite the copy's own, or which `clean` could not remove.

    Raises:
        ManifestError: a file is named like the manifest, lies in dlio's own folder or too deep, or is listed twice.
    """
    names = [file.name for file in files_of(manifest.shards)]
    reserved = [name for name in names if name == NAME or (CONTROL in name and name.partition("/")[0] == CONTROL)]
    if reserved or len(set(names)) < len(names):
        name = reserved[0] if reserved else Counter(names).most_common(1)[0][0]
        raise ManifestError(f"{manifest.root / NAME}: the file name {name!r} is reserved or listed twice")
    if deep := [name for name in names if len(name) > 2 * MOST_LEVELS and name.count("/") > MOST_LEVELS]:
        raise ManifestError(f"{manifest.root / NAME}: {deep[0]} lies deeper than {MOST_LEVELS} folders")
