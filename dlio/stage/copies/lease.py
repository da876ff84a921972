"""Leases: the jobs that use a staged copy, so that nobody removes it.

    DEST/dlio/.leases/<copy>@<token>

A lease is a small file of the user who took it, in a folder that all may write to. It ends when the epilogue drops it
(`dlio clean`), when the machine is booted again, or a week after it was last renewed. Outside a scheduler the holder is
the session, and the lease ends with the session's first process: a shell, or a detached program itself.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.cluster.launchers import job_name
from dlio.io import files, world
from dlio.io.open_folder import MAX_BYTES, OpenFolder
from dlio.locking.owner import Owner, outermost, user_of
from dlio.stage.copies.base_folder import ABSENT, CACHE, LEASES, may_change, open_cache
from dlio.stage.copies.folder import StagedFolder

# For a holder that is not visible from here, such as a job or a process in another container; longer than jobs may run.
_FORGOTTEN_SECONDS = 7 * 86400
_UNFINISHED_SECONDS = 3600  # a lease that has no final name by then was left by a dead process
_MAX_READ = 1000  # the latest of one user on one copy; the others count as in force until they are forgotten
_UNKNOWN = Owner("", "", 0, 0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """One job's use of one copy.

    Attributes:
        job: the scheduler's job, or "" for a session.
        holder: the process that took it; for a session its first process.
        user: the user id of the file's owner.
        renewed: when it was last renewed, in seconds since 1970: the file's change time, which no user can set.
        name: the file's name.
    """

    job: str
    holder: Owner
    user: int
    renewed: float
    name: str = ""

    def __str__(self) -> str:
        return f"{f'job {self.job[:64]}' if self.job else self.holder.process} of user {self.user}"

    def is_over(self) -> bool:
        """Returns whether the holder surely no longer uses the copy."""
        if self.holder.is_of_earlier_boot:
            return True
        alive = None if self.job else self.holder.is_alive(self.user)
        return world.wall() - self.renewed > _FORGOTTEN_SECONDS if alive is None else not alive


def holder_here() -> Owner:
    """Returns who holds the leases that this process takes: itself, or outside a scheduler its session."""
    return Owner.current() if job_name() else _session()


def take(folder: StagedFolder) -> None:
    """Leases a copy for this job, or renews the lease; to be called before looking whether the copy exists.

    If this user may not write to the cache, the copy is used without a lease and a warning is logged, unless root or
    the copy's owner holds a lease for the job, such as its Prolog.
    """
    job, holder = job_name(), holder_here()
    taken: list[Lease] = []
    try:
        taken = [lease for lease in leases(folder) if lease.job == job and (job or lease.holder == holder)]
        mine = next((lease for lease in taken if lease.user == os.geteuid()), None)
        with open_cache(folder.dest) as cache, cache.below(LEASES) as opened:
            if mine is None:
                _write(opened, folder.copy, job, holder)
            else:
                opened.touch(mine.name)
            _forget_own(opened, f"{folder.copy}@")
    except OSError as error:
        if job and any(lease.user in (0, owner_of(folder)) for lease in taken):
            return
        if isinstance(error, FileNotFoundError) and not folder.has_manifest():
            return  # what is left of a copy that was removed
        _log.warning("%s is used without a lease, and may be removed: %s", folder.path, error.strerror or error)


def _write(opened: OpenFolder, copy: str, job: str, holder: Owner) -> None:
    record = json.dumps({"job": job, "holder": holder.to_json()})
    opened.publish(f"{copy}@{world.random_bytes(8).hex()}", record.encode())


def _forget_own(opened: OpenFolder, prefix: str) -> None:
    """Removes this user's ended leases, so that no more are left than can be read."""
    for lease in _read_all(opened, prefix):
        if lease and lease.user == os.geteuid() and lease.is_over():
            with suppress(FileNotFoundError):  # by another process of this user
                opened.unlink(lease.name)


def owner_of(folder: StagedFolder) -> int:
    """Returns the user id of the owner of a copy; root's if it does not exist."""
    try:
        return folder.path.lstat().st_uid
    except OSError:
        return 0


def _session() -> Owner:
    """Returns the first process of this session, or of this user in it; this process if that one has ended."""
    current, user = Owner.current(), os.geteuid()
    leader = os.getsid(0)
    if user_of(leader) != user:  # as after `su`: Lease.is_over could not look it up
        leader = outermost(current.pid, user)
    started = world.start_time(leader)
    return Owner(current.node, current.namespace, leader, started) if started else current


def leases(folder: StagedFolder) -> list[Lease]:
    """Returns the leases on a copy that are in force.

    Raises:
        OSError: the folder of the leases cannot be read, so leases may be in force.
    """
    try:
        with open_cache(folder.dest) as cache, cache.below(LEASES) as opened:
            return [lease for lease in _read_all(opened, f"{folder.copy}@") if lease and not lease.is_over()]
    except OSError as error:
        if error.errno in ABSENT:  # none was ever taken, or dlio has no folder here
            return []
        raise


def is_leased(folder: StagedFolder) -> bool:
    """Returns whether a lease on a copy is in force; if leases cannot be read, one may be."""
    try:
        return bool(leases(folder))
    except OSError:
        return True


def is_shared(folder: StagedFolder, holder: Owner | None = None) -> bool:
    """Returns whether another job than this one may use a copy; without a scheduler, whether another session may.

    The holder is then the session that started this agent, by default this process's own.
    """
    job, holder = job_name(), holder or holder_here()
    try:
        found = leases(folder)
    except OSError:
        return True
    return any(each.job != job or not (job or each.holder == holder) for each in found)


def _read_all(opened: OpenFolder, prefix: str) -> Iterator[Lease | None]:
    """Yields the leases whose names begin with `prefix`, None for each file that is not a lease.

    Few are read, however many a user makes. The rest are taken for leases of an unknown holder, so that many leases
    hide none that is in force.
    """
    users: dict[int, list[tuple[float, str, bool]]] = defaultdict(list)
    for name in opened.names():
        if name.startswith(prefix) and name[0] != ".":
            with suppress(OSError):  # another user's mount that nobody else may enter
                if status := opened.look(name):
                    may_be_one = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES
                    users[status.st_uid].append((world.changed(status), name, may_be_one))
    for user, found in users.items():
        for number, (renewed, name, may_be_one) in enumerate(sorted(found, reverse=True)):
            if number < _MAX_READ or world.wall() - renewed > _FORGOTTEN_SECONDS:
                with suppress(FileNotFoundError):  # dropped by now
                    yield _read(opened, name) if may_be_one else None
            elif may_be_one:
                yield Lease("", _UNKNOWN, user, renewed, name)


def _read(opened: OpenFolder, name: str) -> Lease | None:
    try:
        data, status = opened.read(name)
        record = json.loads(data)
        job, holder = record["job"], Owner.from_json(record["holder"])
        return Lease(job, holder, status.st_uid, world.changed(status), name) if isinstance(job, str) else None
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def drop(dest: Path, job: str, copy: str = "") -> None:
    """Ends the leases of a job, or of this session if `job` is empty; leases of other users stay.

    Args:
        dest, copy: on a copy below this folder; by default on all, also on those that were never made.
        job: the scheduler's name for it.

    Raises:
        StorageError: leases cannot be read, or one cannot be removed.
    """
    session = _session()
    with files.storage_errors("end leases in", dest / CACHE):
        try:
            with open_cache(dest) as cache:
                opened = cache.below(LEASES)
        except OSError as error:
            if error.errno in (*ABSENT, errno.EACCES):  # where this user may not enter it has no lease
                return
            raise
        with opened:
            for lease in _read_all(opened, f"{copy}@" if copy else ""):
                if lease and lease.job == job and (job or lease.holder == session):
                    _end(opened, lease)


def _end(opened: OpenFolder, lease: Lease) -> None:
    if not may_change(lease.user):
        copy = opened.path.parent / lease.name.partition("@")[0]
        _log.warning("the lease of job %r on %s belongs to another user, and is kept", lease.job, copy)
        return
    with suppress(FileNotFoundError):  # another process was quicker
        opened.unlink(lease.name)


def sweep(cache: OpenFolder) -> None:
    """Removes the ended leases that this user may remove, and logs a warning about other files."""
    with suppress(OSError), cache.below(LEASES) as opened:
        found = list(_read_all(opened, ""))
        for lease in found:
            if lease and lease.is_over() and may_change(lease.user):
                opened.unlink(lease.name)
        if None in found:
            _log.warning("%s holds files that are not leases: they are ignored, and kept", opened.path)
        for name in opened.names():
            status = opened.look(name) if name.startswith(".") else None
            if status and status.st_uid == os.geteuid() and world.wall() - world.changed(status) > _UNFINISHED_SECONDS:
                opened.unlink(name)
