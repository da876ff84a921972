"""The node cache: the staged copies below DEST/dlio, shared by jobs and users, and the removal of unused copies.

Only folders with dlio's marker are ever removed, by their owner or root, and only if no job leases them and no process
fills them. Others may write where copies lie. So everything is done by descriptor (dlio/io/open_folder.py), on names
that dlio gives, and only the files of a copy's owner are removed.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.io import files, world
from dlio.io.filesystems import FileSystem, filesystem_of
from dlio.io.open_folder import OpenFolder
from dlio.locking.claim import forget, holder_in
from dlio.locking.owner import Owner
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import ABSENT, CACHE, CLAIMS, copy_named, marker_of, may_change, open_cache
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder

# A copy to remove is renamed twice: to the first name while its leases are read again, to the second once certain.
LEAVING, REMOVED = ".leaving-", ".removed-"
_SHOWN = 5  # of those who use a copy
_HEAD_START_SECONDS = 2.0
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.01, 0.1

_log = logging.getLogger(__name__)


def copies(dest: Path) -> list[StagedFolder]:
    """Returns the copies below `dest/dlio` that bear dlio's marker, the least recently used first.

    Raises:
        StorageError: the folder cannot be read.
    """
    found: list[tuple[float, str]] = []
    with files.storage_errors("access", dest / CACHE):
        try:
            with open_cache(dest) as cache:
                used = {name: _last_used(cache, name) for name in filter(copy_named, cache.names())}
                found = [(time, name) for name, time in used.items() if time is not None]
        except OSError as error:
            if error.errno not in (*ABSENT, errno.EACCES):  # a folder that this user may not enter has no copy for it
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
    return lease.is_leased(folder) or is_being_filled(folder)


def is_being_filled(folder: StagedFolder) -> bool:
    """Returns whether a process is filling the copy; if claims cannot be read, one may be."""
    try:
        return filler_of(folder) is not None
    except OSError:
        return True


def filler_of(folder: StagedFolder) -> Owner | None:
    """Returns the process that fills a copy; None if none does. Raises OSError if its claims cannot be read."""
    try:
        with open_cache(folder.dest) as cache, cache.below(CLAIMS, folder.copy) as claims:
            return holder_in(claims)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise


def await_leader(topology: Topology, has_begun: Callable[[], bool]) -> None:
    """Waits a moment until the node's first process has begun, which shows how far it is, unless this is that one."""
    deadline, pause = world.monotonic() + _HEAD_START_SECONDS, _FIRST_POLL_SECONDS
    while topology.local_rank and world.monotonic() < deadline and not has_begun():
        world.sleep(pause)
        pause = min(pause * 1.5, _LAST_POLL_SECONDS)


def users_of(folder: StagedFolder) -> str:
    """Returns who uses a copy, as text: some jobs that lease it, and the process that fills it; "" if nobody does."""
    try:
        found = list(map(str, lease.leases(folder)))
        filler = filler_of(folder)
    except OSError as error:
        return f"somebody, perhaps: {error}"
    more = [f"{len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
    filling = [f"{filler.process}, which fills it"] if filler else []
    return ", ".join([*found[:_SHOWN], *more, *filling])


def why_kept(folder: StagedFolder) -> str:
    """Returns why a copy is not removed; "" if another process removes it."""
    if users := users_of(folder):
        return f"used by {users}"
    if not os.path.lexists(folder.path):
        return ""
    owner = lease.owner_of(folder)
    return "its removal was interrupted or failed" if may_change(owner) else f"it belongs to user {owner}"


def room(folder: StagedFolder) -> FileSystem:
    """Returns the file system of a copy as it would be without that copy, and without those that may be evicted."""
    system = filesystem_of(folder.dest)
    others = (other for other in _others(folder) if _is_removable(other) and not is_in_use(other))
    sizes = [size for each in (folder, *others) for size in _sizes(each)]
    files_left = None if system.free_files is None else system.free_files + len(sizes)
    return replace(system, free_bytes=system.free_bytes + sum(sizes), free_files=files_left)


def _sizes(folder: StagedFolder) -> list[int]:
    try:
        with open_cache(folder.dest) as cache, cache.below(folder.copy) as copy:
            return list(copy.sizes())
    except OSError:  # it does not exist, or is being removed
        return []


def make_room(folder: StagedFolder, needed_bytes: int, needed_files: int) -> None:
    """Returns once a copy has room, after removing unused copies, the least recently used first.

    Raises:
        StorageError: it lacks room even then; the message says what is needed, what is free, and what is in use.
    """
    others = _others(folder)  # each is tried once: its user could make it again forever
    while True:
        try:
            return filesystem_of(folder.path).check_room(folder.path, needed_bytes, needed_files)
        except StorageError as error:
            if not any(map(remove_unused, others)):
                used = "".join(f"; {other.path} stays: {why}" for other in _others(folder) if (why := why_kept(other)))
                raise StorageError(error.errno, f"{error.strerror}{used}") from error


def make_way(live: LiveFolder, others: Sequence[File], room: int, holder: Owner | None = None) -> int:
    """Removes files of a copy that its plan does not keep, unfinished ones first, as far as they take too much.

    None goes from a complete copy, or from one that another job leases.

    Args:
        live, others: the copy, which this process fills, and the files.
        room: the bytes that they may take together.
        holder: of this job's lease; see `lease.is_shared`.

    Returns:
        The bytes that they take beyond that.

    Raises:
        StorageError: the folder cannot be read.
    """
    folder, absent = live.staged, set(live.staged.missing(others))
    here = live.begun(list(absent)) | {file: file.num_bytes for file in others if file not in absent}
    excess = sum(here.values()) - room
    if excess > 0 and (folder.has_manifest() or lease.is_shared(folder, holder)):
        return excess
    for file, num_bytes in here.items():
        if excess <= 0:
            break
        paths = (live.blocks(file), live.unfinished(file)) if file in absent else (folder.path / file.name,)
        with suppress(OSError):
            for path in paths:
                path.unlink(missing_ok=True)
            excess -= num_bytes
    return max(0, excess)


def give_way(folder: StagedFolder) -> Callable[[], bool]:
    """Returns what makes room for a claim on a copy: each call removes another copy that nobody uses, if it can.

    It returns whether it has removed one. Each copy is tried once.
    """
    others = _others(folder)
    return lambda: any(map(remove_unused, others))


def _others(folder: StagedFolder) -> Iterator[StagedFolder]:
    yield from (other for other in copies(folder.dest) if other.copy != folder.copy)


def _is_removable(folder: StagedFolder) -> bool:
    """Returns whether a copy exists and this user may remove it."""
    try:
        with open_cache(folder.dest) as cache:
            status = cache.look(folder.copy)
            return status is not None and may_change(status.st_uid)
    except OSError:
        return False


def remove_unused(folder: StagedFolder) -> bool:
    """Removes a copy unless it is in use or another user's; returns whether it was removed.

    The folder is renamed first, and the leases are read again. If a job leased the copy between the two looks, it is
    renamed back. A job that comes later does not find it, and stages again.
    """
    if not _is_removable(folder) or is_in_use(folder):
        return False
    name = f"{world.random_bytes(8).hex()}-{folder.copy}"
    try:
        with open_cache(folder.dest) as cache:
            cache.rename(folder.copy, LEAVING + name)
            if is_in_use(folder) and cache.look(folder.copy) is None:
                cache.rename(LEAVING + name, folder.copy)
                world.fsync(cache.descriptor)  # else a loss of power may leave it under the other name
                return False
            forget_claims(cache, folder.copy)  # first: a job that stages again during the removal makes a new claim
            cache.rename(LEAVING + name, REMOVED + name)
    except OSError as error:  # another process removes it, or has renamed it back
        if error.errno in files.FULL:  # Btrfs needs room to rename
            _log.warning("cannot remove %s: %s: remove some other file there first", folder.path, error.strerror)
        return False
    return discard(StagedFolder(folder.dest, REMOVED + name))


def remove_own(folder: StagedFolder) -> None:
    """Removes a copy that this process has claimed, renamed first, so that a thread that still writes adds nothing."""
    if folder.marked_as() != folder.copy:  # the disk may have been too full for a marker
        return
    with suppress(OSError), open_cache(folder.dest) as cache:  # Btrfs needs room to rename
        cache.rename(folder.copy, name := f"{REMOVED}{world.random_bytes(8).hex()}-{folder.copy}")
        folder = StagedFolder(folder.dest, name)
    discard(folder)


def forget_claims(cache: OpenFolder, copy: str) -> None:
    """Removes the claims on a copy that are over, if this user may."""
    with suppress(OSError), cache.below(CLAIMS) as all_claims:
        with all_claims.below(copy) as claims:
            if may_change(claims.owner):
                forget(claims)
        all_claims.rmdir(copy)


def discard(folder: StagedFolder) -> bool:
    """Removes a copy that was renamed for removal, or its rest; returns whether it was removed."""
    try:
        folder.remove()
    except StorageError as error:
        if folder.path.exists():
            _log.warning("%s", error)
            return False
    return True
