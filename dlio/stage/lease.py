"""Leases: which jobs use a staged copy, so that nobody removes it under them.

    DEST/dlio/.leases/<copy>/<job>

A lease is a file named after the scheduler's job, so a requeued job finds its own again; it ends when the epilogue
drops it (`dlio clean`), when the machine has been booted since, or after a week. Outside a scheduler the holder is the
session, and the lease ends with the session's first process: a shell, or a detached program itself.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dlio import files
from dlio.owner import Owner, start_time
from dlio.stage.folder import StagedFolder, make_open

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID", "PJM_JOBID")
# A holder whose life cannot be looked up, a job or a process in another container, counts for longer than jobs may run.
_FORGOTTEN_SECONDS = 7 * 86400

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """One job's use of one copy.

    Attributes:
        job: the scheduler's job, or "" for a session.
        holder: the process that took it; for a session its first process.
        renewed: when it was last taken, in seconds since 1970.
    """

    job: str
    holder: Owner
    renewed: float

    def is_over(self) -> bool:
        """Returns whether the holder surely uses the copy no more."""
        host, _, boot = self.holder.node.partition("/")
        here, _, booted = Owner.current().node.partition("/")
        if host == here and boot != booted:
            return True
        alive = None if self.job else self.holder.is_alive()
        return time.time() - self.renewed > _FORGOTTEN_SECONDS if alive is None else not alive


def job_name(environ: Mapping[str, str] | None = None) -> str:
    """Returns the scheduler's name for this job, such as `123.pbs`; "" outside a scheduler."""
    environ = os.environ if environ is None else environ
    return next((environ[name] for name in _JOB_VARIABLES if environ.get(name)), "").replace("/", "_")


def take(folder: StagedFolder) -> None:
    """Leases a copy for this job, or renews the lease; to be called before looking whether the copy is there.

    Where the cache is another user's and not open to writing, the copy is used without a lease, and a warning logged,
    unless the job has one, such as its Prolog's.
    """
    job = job_name()
    holder = Owner.current() if job else _session()
    lease = Lease(job, holder, time.time())
    name = job or f"session-{holder.pid}-{holder.started}"
    aside = folder.leases / f".{secrets.token_hex(8)}"
    try:
        make_open(folder.leases, folder.leases.parent.stat().st_mode & 0o1777)
        try:
            aside.write_text(json.dumps(asdict(lease)))
            aside.replace(folder.leases / name)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        if job and any(path.name == name for path, _ in leases(folder)):
            return
        _log.warning("%s is used without a lease, and may be removed meanwhile: %s", folder.path, error)


def _session() -> Owner:
    """Returns the first process of this session, or this process where that one is gone."""
    current = Owner.current()
    leader = os.getsid(0)
    started = start_time(leader)
    return Owner(current.node, current.namespace, leader, started) if started else current


def leases(folder: StagedFolder) -> Iterator[tuple[Path, Lease]]:
    """Yields the leases on a copy that are in force, each with its file."""
    for path in sorted(folder.leases.glob("[!.]*")):
        lease = _read(path)
        if lease is not None and not lease.is_over():
            yield path, lease


def _read(path: Path) -> Lease | None:
    try:
        record = json.loads(path.read_text())
        return Lease(str(record["job"]), Owner(**record["holder"]), float(record["renewed"]))
    except (OSError, ValueError, KeyError, TypeError):  # dropped meanwhile, or cut off by a crash of the machine
        return None


def drop(folder: StagedFolder, job: str) -> None:
    """Ends the leases of a job, or of this session where `job` is empty, on a copy.

    Raises:
        StorageError: a lease cannot be removed, such as that of another user's job.
    """
    session = _session()
    for path, lease in leases(folder):
        if lease.job == job and (job or lease.holder == session):
            with files.storage_errors("end the lease", path):
                path.unlink(missing_ok=True)


def forget(folder: StagedFolder) -> None:
    """Removes the leases on a copy that are over, and what their takers left unfinished, as far as this user may."""
    for path in folder.leases.glob("*"):
        lease = _read(path)
        is_left = lease is not None and (lease.holder.is_alive() is False if path.name[0] == "." else lease.is_over())
        if is_left:
            with suppress(OSError):  # another user's, or gone
                path.unlink()
