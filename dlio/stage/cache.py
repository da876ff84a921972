"""The node cache: the staged copies below DEST/dlio, shared by jobs and users, and which of them may go.

Only folders with dlio's marker are ever removed, by their owner or root, and of these only ones that no job leases and
nobody is filling. Others may write where copies lie: so all is done by descriptor (dlio/open_folder.py), on names that
dlio gives, and of a copy only what is its owner's is removed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dlio import files
from dlio.claim import forget, is_in_progress
from dlio.errors import StorageError
from dlio.filesystems import FileSystem, check_room, filesystem_of
from dlio.open_folder import OpenFolder
from dlio.stage import lease
from dlio.stage.folder import ASIDE, CONTROL, MARKER, StagedFolder, marker_of
from dlio.stage.ground import ABSENT, CACHE, CLAIMS, LEASES, OWN, copy_named, is_own, open_cache, open_dest
from dlio.stage.resolve import places
from dlio.stage.trust import own_dest

# What goes is renamed twice: to the first name while its leases are read again, to the second once it is certain.
_LEAVING, _REMOVED = ".leaving-", ".removed-"

_log = logging.getLogger(__name__)


def copies(dest: Path) -> list[StagedFolder]:
    """Returns the copies below `dest/dlio` that bear dlio's marker, the least recently used first.

    Raises:
        StorageError: the folder cannot be read.
    """
    found: list[tuple[float, str]] = []
    with files.storage_errors("look at", dest / CACHE):
        try:
            with open_cache(dest) as cache:
                used = {name: _last_used(cache, name) for name in filter(copy_named, cache.names())}
                found = [(time, name) for name, time in used.items() if time is not None]
        except OSError as error:
            if error.errno not in (*ABSENT, errno.EACCES):  # nothing of another user's, who shuts this one out
                raise
    return [StagedFolder(dest, name) for _, name in sorted(found)]


def _last_used(cache: OpenFolder, name: str) -> float | None:
    try:
        with cache.below(name) as copy:
            marker = marker_of(copy)
            return marker.st_mtime if marker else None
    except OSError:
        return None


def is_in_use(folder: StagedFolder) -> bool:
    """Returns whether a job leases the copy, or a process is filling it."""
    try:
        return bool(lease.leases(folder)) or is_being_filled(folder)
    except OSError:  # what cannot be read may say so
        return True


def is_being_filled(folder: StagedFolder) -> bool:
    """Returns whether a process is filling the copy."""
    try:
        with open_cache(folder.dest) as cache, cache.below(CLAIMS, folder.copy) as claims:
            return is_in_progress(claims)
    except OSError as error:
        return error.errno not in ABSENT


def room(folder: StagedFolder) -> int:
    """Returns the bytes that a copy may come to hold: what is free, what it holds already, and what may be evicted."""
    others = (
        other for other in copies(folder.dest) if other != folder and _is_removable(other) and not is_in_use(other)
    )
    return filesystem_of(folder.dest).free_bytes + sum(_num_bytes(each) for each in (folder, *others))


def _num_bytes(folder: StagedFolder) -> int:
    try:
        with open_cache(folder.dest) as cache, cache.below(folder.copy) as copy:
            return copy.num_bytes()
    except OSError:  # it is not there, or goes
        return 0


def make_room(folder: StagedFolder, needed_bytes: int, needed_files: int) -> FileSystem:
    """Returns the file system of a copy once it takes so much more, having removed unused copies, oldest use first.

    Raises:
        StorageError: even then it does not; the message says what is needed, what is free, and what is in use.
    """
    others = _others(folder)  # each is tried once: its user could make it anew for ever
    while True:
        try:
            return check_room(folder.path, needed_bytes, needed_files)
        except StorageError as error:
            if not any(map(remove_unused, others)):
                used = "".join(f"; {other.path} is in use" for other in _others(folder))
                raise StorageError(error.errno, f"{error.strerror}{used}") from error


def _others(folder: StagedFolder) -> Iterator[StagedFolder]:
    yield from (other for other in copies(folder.dest) if other != folder)


def _is_removable(folder: StagedFolder) -> bool:
    """Returns whether this user may remove a copy: its owner may, and root."""
    try:
        with open_cache(folder.dest) as cache:
            status = cache.look(folder.copy)
            return status is not None and os.geteuid() in (0, status.st_uid)
    except OSError:
        return False


def remove_unused(folder: StagedFolder) -> bool:
    """Removes a copy unless it is in use or another user's; returns whether it has.

    The folder is renamed first and the leases are read again: a job that leased it between the two looks gets it back,
    and one that comes later finds nothing, and stages anew.
    """
    if not _is_removable(folder) or is_in_use(folder):
        return False
    name = f"{secrets.token_hex(8)}-{folder.copy}"
    try:
        with open_cache(folder.dest) as cache:
            cache.rename(folder.copy, _LEAVING + name)
            if is_in_use(folder) and cache.look(folder.copy) is None:
                cache.rename(_LEAVING + name, folder.copy)
                return False
            _forget_claims(cache, folder.copy)  # before it takes time: who stages anew meanwhile has a claim of his own
            cache.rename(_LEAVING + name, _REMOVED + name)
    except OSError:  # another process was quicker: it removes it, or gave it back
        return False
    return _discard(StagedFolder(folder.dest, _REMOVED + name))


def _forget_claims(cache: OpenFolder, copy: str) -> None:
    with suppress(OSError), cache.below(CLAIMS) as all_claims:
        with all_claims.below(copy) as claims:
            if os.geteuid() in (0, claims.owner):
                forget(claims)
        all_claims.rmdir(copy)


def _discard(folder: StagedFolder) -> bool:
    """Removes a copy that was renamed for it, or what an interrupted removal left, and returns whether it is gone."""
    try:
        folder.remove()
    except StorageError as error:
        if folder.path.exists():
            _log.warning("%s", error)
            return False
    return True


def clean(dest: str | os.PathLike[str] | None = None, *, job: str | None = None, keep: bool = False) -> list[Path]:
    """Ends this job's leases below `dest` and returns the copies removed: all that nobody else uses.

    Args:
        dest: the folder given to `stage`; by default every folder that `local_folders` and DLIO_STAGED name.
        job: the scheduler's job id; by default this job's.
        keep: end the leases only, and leave the copies for the next job.

    Raises:
        StorageError: a folder cannot be read, or a lease not be removed.
    """
    removed: list[Path] = []
    problems: list[StorageError] = []
    for folder in folders_with_copies(dest):
        try:
            removed += _clean_one(folder, lease.job_name() if job is None else job, keep)
        except StorageError as error:
            problems.append(error)
    if problems:
        raise problems[0]
    return removed


def _clean_one(dest: Path, job: str, keep: bool) -> list[Path]:
    """Returns the copies removed in one folder; raises as `clean`."""
    removed = []
    if not keep:
        _give_back(dest)
    for copy in copies(dest):
        lease.drop(copy, job)
        if not keep and remove_unused(copy):
            removed.append(copy.path)
    if not keep:
        _sweep(dest)
    return removed


def _give_back(dest: Path) -> None:
    """Gives the copies that were neither kept nor removed when their removal was interrupted their names again."""
    with suppress(OSError), open_cache(dest) as cache:
        for leaving, copy in _renamed(cache, _LEAVING):
            with suppress(OSError):  # decided meanwhile, or another user's
                cache.rename(leaving, copy if cache.look(copy) is None else _REMOVED + leaving.removeprefix(_LEAVING))


def _renamed(cache: OpenFolder, prefix: str) -> list[tuple[str, str]]:
    """Returns the entries whose removal has begun, each with the name of its copy."""
    found = [(name, name.removeprefix(prefix).partition("-")[2]) for name in cache.names() if name.startswith(prefix)]
    return [(name, copy) for name, copy in found if copy_named(copy)]


def _sweep(dest: Path) -> None:
    """Removes what interrupted removals left, then the cache's own folders if nothing is left in them."""
    with suppress(OSError):
        with open_cache(dest) as cache:
            for name, _ in _renamed(cache, _REMOVED):
                status = cache.look(name)
                if status is not None and os.geteuid() in (0, status.st_uid):
                    _discard(StagedFolder(dest, name))
            for name in filter(copy_named, cache.names()):
                _remove_unmarked(StagedFolder(dest, name), cache)
            lease.sweep(cache)
            with suppress(OSError), cache.below(CLAIMS) as claims:
                for name in claims.names():
                    _forget_claims(cache, name)
            for name in (CLAIMS, LEASES):
                with suppress(OSError):
                    cache.rmdir(name)
        with open_dest(dest) as opened:
            opened.rmdir(CACHE)
        if is_own(dest):
            with OpenFolder.at(dest.parent) as around:
                around.rmdir(dest.name)


def _remove_unmarked(folder: StagedFolder, cache: OpenFolder) -> None:
    """Removes what is left of a copy whose stage was killed before it bore a marker: no more than that marker."""
    with suppress(OSError):
        with cache.below(folder.copy) as copy:
            if os.geteuid() not in (0, copy.owner) or marker_of(copy) or is_in_use(folder):
                return
            with suppress(OSError), copy.below(CONTROL, ASIDE) as aside:
                for token in aside.names():
                    _remove_begun(aside, token)
            with suppress(OSError), copy.below(CONTROL) as control:
                control.rmdir(ASIDE)
            with suppress(OSError):
                copy.rmdir(CONTROL)
        cache.rmdir(folder.copy)


def _remove_begun(aside: OpenFolder, token: str) -> None:
    """Removes the folder of unfinished files of one stage, if there is nothing in it but a marker."""
    with aside.below(token) as folder:
        names = folder.names()
        if all(name.lstrip(".").startswith(MARKER) for name in names):
            for name in names:
                folder.remove(name, aside.owner)
    aside.rmdir(token)


def _with_own(dest: Path) -> list[Path]:
    """Returns `dest` and what users have in its place: this user, or all of them for root."""
    if os.geteuid():
        return [dest, own_dest(dest)]
    try:
        names = [name for name in os.listdir(dest) if re.fullmatch(rf"{OWN}\d+", name)]  # noqa: PTH208  names are enough
    except OSError:
        names = []
    return [dest, *(dest / name for name in sorted(names))]


def folders_with_copies(dest: str | os.PathLike[str] | None = None) -> list[Path]:
    """Returns the folders that may hold staged copies: DEST, or all of this node, and what users have instead."""
    named = [Path(dest).absolute()] if dest is not None else places()
    return list(dict.fromkeys(folder for place in named for folder in _with_own(place)))
