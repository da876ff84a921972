"""The folders of this node that may hold staged copies.

    /tmp/dlio-u<uid>/dests/<digest>    a file for each DEST to which this user has staged on this node: its path
    /tmp/dlio-u<uid>/agents/           sockets of agents that cannot lie in their copies (dlio/stage/protocol/unix.py)

Only the user can write there. So a loader finds what was staged, wherever it is; root's list serves all users.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dlio.io import files
from dlio.io.filesystems import local_folders
from dlio.io.open_folder import OpenFolder
from dlio.stage.copies.base_folder import CACHE, OWN_NAME, is_closed, open_dest
from dlio.stage.copies.ownership import own_dest

STAGED_VARIABLE = "DLIO_STAGED"
LISTED_AT = Path("/tmp")  # every node has it, whatever the variables of a job say
_DESTS = "dests"
_MOST_DESTS = 1000

_log = logging.getLogger(__name__)


def known_folders() -> list[Path]:
    """Returns the folders in DLIO_STAGED (separated by ":"), the node's local folders, and the remembered DESTs."""
    named = [Path(name).absolute() for name in os.environ.get(STAGED_VARIABLE, "").split(os.pathsep) if name]
    local = (folder.absolute() for _, folder in local_folders())
    return list(dict.fromkeys([*named, *local, *_remembered(os.geteuid()), *_remembered(0)]))


def remember(dest: Path) -> None:
    """Makes DEST one of the `known_folders` of this user's processes on this node; of all users' if this is root."""
    path = os.fsencode(dest.absolute())
    try:
        with open_own(_DESTS) as dests:
            dests.publish(files.digest_bytes(path).partition(":")[2], path)
    except OSError as error:
        _log.info("%s is not remembered: %s", dest, error)


def open_own(name: str, mode: int = 0o755) -> OpenFolder:
    """Returns a folder that only this user can change, below `/tmp/dlio-u<uid>`, held open; it is made if missing.

    Raises:
        OSError: it cannot be made, or belongs to another user, or others can change it.
    """
    own = own_dest(LISTED_AT)
    with OpenFolder.at(own.parent) as around:
        around.make(own.name).close()
    with open_dest(own) as opened:
        found = opened.make(name, mode)
        if not all(is_closed(folder.status, {os.geteuid()}, shut=True) for folder in (opened, found)):
            found.close()
            raise PermissionError(errno.EPERM, "it belongs to another user, or others can change it", str(own / name))
    return found


def _remembered(user: int) -> Iterator[Path]:
    """Yields the DESTs that a user has staged to, and forgets those of this user that hold no copies any more."""
    with suppress(OSError), open_dest(own_dest(LISTED_AT, user)) as opened, opened.below(_DESTS) as dests:
        if not all(is_closed(folder.status, {user}, shut=True) for folder in (opened, dests)):
            return
        for name in [name for name in dests.names() if name[0] != "."][:_MOST_DESTS]:
            with suppress(OSError):  # a DEST that cannot be accessed hides no other one
                dest = Path(os.fsdecode(dests.read(name)[0]))
                if dest.is_absolute() and any((each / CACHE).is_dir() for each in (dest, own_dest(dest, user))):
                    yield dest
                elif user == os.geteuid():
                    dests.unlink(name)


def folders_with_copies(dest: str | os.PathLike[str] | None = None) -> list[Path]:
    """Returns DEST, by default all `known_folders`, each followed by the folders that users have in its place."""
    return _with_own([Path(dest).absolute()] if dest is not None else known_folders())


def folders_to_clean(dest: str | os.PathLike[str] | None = None) -> list[Path]:
    """Returns DEST, by default those that `stage` chooses from; in others, a copy goes if its folder is named."""
    return _with_own([Path(dest)] if dest is not None else [folder for _, folder in local_folders()])


def _with_own(named: list[Path]) -> list[Path]:
    named = [folder.absolute() for folder in named]
    return list(dict.fromkeys(folder for each in named for folder in (each, *_own_folders(each))))


def _own_folders(dest: Path) -> list[Path]:
    """Returns the folder that this user has instead of DEST; for root those of all users."""
    if os.geteuid():
        return [own_dest(dest)]
    try:
        names = [name for name in os.listdir(dest) if OWN_NAME.fullmatch(name)]  # noqa: PTH208  names are enough
    except OSError:
        names = []
    return [dest / name for name in sorted(names)]
