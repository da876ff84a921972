"""The folders of this node that may hold staged copies, and the copies in them that this user may use.

    /tmp/dlio-u<uid>/dests/<digest>    a file for each DEST to which this user has staged on this node: its path
    /tmp/dlio-u<uid>/agents/           sockets of agents that cannot lie in their copies (dlio/stage/protocol/unix.py)

Only the user can write there. So a loader finds what was staged, wherever it is; root's list serves all users.

Only copies of this user and complete copies of root's are used. Another user can change a copy of theirs after any
check, and can replace what lies in a folder of theirs. If such a folder, copy or claim is in the way,
DEST/dlio-u<uid> is used instead of DEST. So each folder from DEST/dlio to the copy must belong to this user or root,
must not be a link, and must be sticky if others may write to it. Then nobody else can replace it, and it may be used by
its path.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.io import files
from dlio.io.filesystems import filesystem_of, local_folders
from dlio.io.ground import check_ground, loose_folders
from dlio.io.open_folder import OpenFolder, TakenError
from dlio.stage.copies.base_folder import (
    CACHE,
    CLAIMS,
    LEASES,
    OWN,
    OWN_NAME,
    copy_named,
    is_closed,
    is_own,
    open_cache,
    open_dest,
    open_up,
)
from dlio.stage.copies.folder import StagedFolder

STAGED_VARIABLE = "DLIO_STAGED"
LISTED_AT = Path("/tmp")  # every node has it, whatever the variables of a job say
_DESTS = "dests"
_MOST_DESTS = 1000
_TRIES = 3  # to choose a folder that another user does not take at that moment

T = TypeVar("T")
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
    """Returns DEST, by default all `known_folders`, each followed by the folders that users have in its place.

    Raises:
        StorageError: DEST is a file, or a link to one or to nothing.
    """
    return _with_own([checked_dest(dest)] if dest is not None else known_folders())


def checked_dest(dest: str | os.PathLike[str]) -> Path:
    """Returns DEST as an absolute path; raises StorageError if it is a file, or a link to one or to nothing."""
    if os.path.lexists(dest) and not os.path.isdir(dest):  # noqa: PTH112  nor does it raise for a closed folder
        raise StorageError(f"{dest} is no folder: name the one that was given to dlio stage")
    return Path(dest).absolute()


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


def own_dest(dest: Path, user: int | None = None) -> Path:
    """Returns the folder that a user, by default this one, has instead of a DEST that is not safe."""
    return dest / f"{OWN}{os.geteuid() if user is None else user}"


def is_safe(folder: StagedFolder, user: int) -> bool:
    """Returns whether only root and the user can replace or change this copy.

    Raises:
        StorageError: its status cannot be read.
    """
    users = {user, 0}
    cache = f"{folder.dest}/{CACHE}"  # text: paths would cost each stage 0.3 ms more
    own = [str(folder.dest)] if is_own(folder.dest) else []
    shared = all(_is_of(path, users) for path in (*own, cache, f"{cache}/{CLAIMS}", f"{cache}/{LEASES}"))
    alone = (f"{cache}/{folder.copy}", f"{cache}/{CLAIMS}/{folder.copy}")
    return shared and all(_is_of(path, users, shut=True) for path in alone)


def safe_copies(content_id: str, dests: Iterable[Path]) -> Iterator[StagedFolder]:
    """Yields the copies of a data set in these DESTs, and in this user's own instead, that nobody but root can change.

    Args:
        content_id: of the data set; "" for any.
        dests: the folders.
    """
    for dest in dict.fromkeys(each for one in dests for each in (one, own_dest(one))):
        try:
            with open_cache(dest) as cache:
                names = [name for name in cache.names() if name.startswith(content_id) and copy_named(name)]
        except OSError:
            continue
        yield from (copy for name in names if is_safe(copy := StagedFolder(dest, name), os.geteuid()))


def loose_around(dest: Path) -> list[Path]:
    """Returns DEST, and the folders around it, if anybody can replace what lies in them: DEST/dlio, or DEST itself.

    Raises:
        StorageError: the status of DEST cannot be read.
    """
    with files.storage_errors("access", dest):
        return list(loose_folders(dest.parent if is_own(dest) else dest))


def folder_for_us(dest: Path, copy: str, wanted: Sequence[File]) -> StagedFolder:
    """Returns the folder in which this user has the copy, or is to make it; or root's, if it holds the files `wanted`.

    Raises:
        StorageError: anybody may replace what lies in DEST; other users own or can change both possible folders; or
            the status of the folders cannot be read.
    """

    def serves(folder: StagedFolder, user: int) -> bool:
        return is_safe(folder, user) and (_may_make(folder, user) or folder.holds(wanted))

    with files.storage_errors("access", dest), suppress(FileNotFoundError, NotADirectoryError):
        os.stat(f"{dest}/.")  # noqa: PTH116  refused if DEST itself is shut; DEST/dlio may be another user's mount
    if any(loose != dest or loose.stat().st_uid != os.geteuid() for loose in loose_around(dest)):
        check_ground(dest)
    shared = StagedFolder(dest, copy, user=os.geteuid())
    if serves(shared, os.geteuid()):
        return shared
    us = _uid_on(dest / CACHE)
    if serves(shared, us):
        return replace(shared, user=us)
    own = StagedFolder(own_dest(dest, us), copy, user=us)
    if _is_of(str(own.dest), {us}) and serves(own, us):
        return own
    raise StorageError(
        f"{own.dest} belongs to another user, or others can change it: remove it, or stage to another folder"
    )


def in_folder_for_us(dest: Path, copy: str, wanted: Sequence[File], work: Callable[[StagedFolder], T]) -> T:
    """Returns what `work` returns for `folder_for_us`, once the folders around it are as open to others as DEST is.

    A complete copy is used even if nothing can be written there. If another user takes that folder before `work` has
    claimed it, this is done again, in the folder that is this user's alone.

    Raises:
        StorageError: as `folder_for_us` and `work`, or a folder cannot be made; a TakenError if the folder is lost at
            each try.
    """

    def attempt() -> T:
        folder = folder_for_us(dest, copy, wanted)
        try:
            open_up(folder.dest)
        except StorageError:
            if not folder.holds(wanted):  # else only the lease needs those folders
                raise
        check_safe(folder)
        return work(folder)

    for _ in range(_TRIES - 1):
        with suppress(TakenError):
            return attempt()
    return attempt()


def _may_make(folder: StagedFolder, user: int) -> bool:
    """Returns whether a user may make or complete a safe copy: nobody else has begun it, or shuts the folders around.

    Root's folders are shut if the process that made them was killed before it opened them, or by an administrator.

    Raises:
        StorageError: the status of a folder cannot be read.
    """
    cache = f"{folder.dest}/{CACHE}"
    if _is_shut(cache) or _is_shut(f"{cache}/{CLAIMS}"):
        return False
    return all(_owner(f"{path}/{folder.copy}") in (None, user) for path in (cache, f"{cache}/{CLAIMS}"))


def _is_shut(path: str) -> bool:
    """Returns whether a folder of another user is here in which this one may make nothing."""
    is_anothers = _owner(path) not in (None, os.geteuid())
    return is_anothers and not os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def _owner(path: str) -> int | None:
    """Returns the user id of the owner; None if it does not exist yet."""
    with files.storage_errors("access", path):
        try:
            return os.lstat(path).st_uid
        except FileNotFoundError:
            return None


def check_safe(folder: StagedFolder) -> None:
    """Checks that a folder of `folder_for_us` has not been replaced by another user since.

    Raises:
        TakenError: it has been replaced, or can be.
    """
    if folder.user is not None and not is_safe(folder, folder.user):
        raise TakenError(f"another user has replaced {folder.path}: stage again")


def _is_of(path: str, users: set[int], *, shut: bool = False) -> bool:
    """Returns `is_closed` of a path that no user's process serves; True if it does not exist yet, False if hidden."""
    with files.storage_errors("access", path):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return True
        except (NotADirectoryError, PermissionError):  # a file around it, or a folder that its owner has shut
            return False
        return is_closed(status, users, shut=shut) and not _is_served(path, status)


def _is_served(path: str, status: os.stat_result) -> bool:
    """Returns whether a FUSE file system is mounted here: the process that serves it decides who owns what."""
    around = os.stat(os.path.dirname(path))  # noqa: PTH116, PTH120  of text
    return status.st_dev != around.st_dev and filesystem_of(Path(path)).type.startswith("fuse")


def _uid_on(folder: Path) -> int:
    """Returns the owner of files that this process makes in `folder`; an NFS with squashed ids changes it."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_uid
    except OSError:
        return os.geteuid()
