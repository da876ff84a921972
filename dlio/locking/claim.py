"""Claims: of all processes that want one piece of work done in one folder, one does it and the others wait.

Claims are numbered files. Claim n + 1 is made, by link(2), only by a process that saw the owner of claim n dead or
done. Of several that try, the system lets one succeed. So nothing is taken away from a live owner, no lock is needed
(flock may answer ENOSYS on shared file systems), and no process can come between looking and taking.

If the owner's process is visible from here, its death is known at once. On another node or in another container its
heartbeat shows that it lives: the claim's modification time, renewed every second.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from dlio.cluster import liveness
from dlio.errors import StorageError
from dlio.io import world
from dlio.io.files import FULL
from dlio.io.open_folder import Below, OpenFolder
from dlio.locking import claim_file
from dlio.locking.claim_file import Claim
from dlio.locking.owner import Owner

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.01, 0.2


@contextmanager
def claimed(
    folder: Path | Below,
    is_done: Callable[[], bool],
    *,
    patient: bool = True,
    give_way: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Claim, Claim | None] | None]:
    """Yields this process's claim and the one it succeeds, or None once another process has done the work.

    If not `patient`, it also yields None while another process does the work.

    The body does the work when it gets a claim. `is_done` must hold when the body ends, since the claims are removed
    then. An Exception passes its message on to the processes that wait. Any other exception (an interrupt) leaves the
    work to the next of them.

    Args:
        folder: the folder of the claims, shared by all who want the same work; made by this call.
        is_done: whether the work is done; called often, by processes that wait.
        patient: wait for another process that has a claim.
        give_way: called while the disk is too full for a claim; returns whether it has made some room.

    Raises:
        StorageError: the folder cannot be written, or the process that this one waited for failed.
    """
    below = _below(folder)
    succeeded = _wait_for_claim(below, is_done, patient, give_way)
    if succeeded is None:
        yield None
        return
    mine, previous = succeeded
    with claim_file.heartbeat(below, mine.number):
        try:
            yield mine, previous
            claim_file.remove(below)
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            claim_file.rewrite(below, replace(mine, state=f"failed: {error}", errno=number))
            raise
        except BaseException:
            claim_file.rewrite(below, replace(mine, state="released"))
            raise


def _below(folder: Path | Below) -> Below:
    return folder if isinstance(folder, Below) else Below(folder.parent, (folder.name,))


@contextmanager
def exclusively(folder: Path | Below, work: str) -> Iterator[None]:
    """Keeps other processes from the same work until the context is left, which removes the folder of the claims.

    On a file system without hard links it keeps nobody from anything.

    Args:
        folder: the folder of the claims; made by this call.
        work: a name of the work for the error message: `dlio pack into /data/packed`.

    Raises:
        StorageError: another process does the work (known at once on this machine, else after its next heartbeat), or
            the folder cannot be written.
    """
    below = _below(folder)
    try:
        with _held(below, work):
            yield
    finally:
        with suppress(OSError), OpenFolder.at(below.root) as opened:  # another process has a claim
            *around, last = below.names
            with opened.below(*(around or ["."])) as holding:
                holding.rmdir(last)


@contextmanager
def _held(folder: Below, work: str) -> Iterator[None]:
    try:
        mine = _succeed(folder, work)
    except StorageError as error:
        if error.errno not in _NO_LINKS:
            raise
        yield
        return
    try:
        with claim_file.heartbeat(folder, mine.number):
            yield
    finally:
        claim_file.remove(folder)


def _succeed(folder: Below, work: str) -> Claim:
    """Returns a claim made after the one of an owner who is done or dead."""
    while True:
        latest = claim_file.latest(folder)
        if latest is not None and _is_at_work(folder, latest):
            problem = f"another {work} is under way, by {latest.owner.process}: wait until it ends, or end it"
            raise StorageError(errno.EBUSY, problem)
        if mine := claim_file.make(folder, latest.number + 1 if latest else 1):
            return mine


def _is_at_work(folder: Below, claim: Claim) -> bool:
    """Returns whether a claim is in force; waits for a heartbeat if its owner is not visible from here."""
    if claim.is_over or claim.owner.is_alive():
        return not claim.is_over
    beat, deadline = claim_file.modified(folder, claim.number), world.monotonic() + liveness.LOST_WRITER_SECONDS
    while world.monotonic() < deadline and (found := claim_file.modified(folder, claim.number)):
        if found != beat:
            return True
        world.sleep(_LAST_POLL_SECONDS)
    return False


def holder_in(folder: OpenFolder) -> Owner | None:
    """Returns a process that may be alive and holds a claim in the folder or in one directly below it; None if none.

    The folder may be another user's. So a heartbeat counts by the time that the system noted, and a process counts
    only if it belongs to the claim's owner.

    Raises:
        OSError: the folder cannot be read.
    """
    return next(filter(None, map(_holder, chain([folder], _shares(folder)))), None)


def _holder(folder: OpenFolder) -> Owner | None:
    latest = claim_file.latest_in(folder)
    status = folder.look(str(latest.number)) if latest else None
    if latest is None or status is None or latest.is_over:
        return None
    silent = world.wall() - world.changed(status)
    return None if latest.owner.is_lost(silent, liveness.LOST_WRITER_SECONDS, status.st_uid) else latest.owner


def _shares(folder: OpenFolder) -> Iterator[OpenFolder]:
    for name in folder.names():
        if folder.has_folder(name):
            with suppress(FileNotFoundError), folder.below(name) as below:
                yield below


def _wait_for_claim(
    folder: Below, is_done: Callable[[], bool], patient: bool, give_way: Callable[[], bool]
) -> tuple[Claim, Claim | None] | None:
    """Returns the claim made and the one before it, or None if the work is done, or not `patient` and under way."""
    waited_for: set[str] = set()
    heartbeats, pause = liveness.Heartbeats(), _FIRST_POLL_SECONDS
    while not is_done():
        latest = claim_file.latest(folder)
        if latest is not None and latest.state.startswith("failed") and latest.token in waited_for:
            problem = f"the process {latest.owner.pid} that staged for this node {latest.state}"
            raise StorageError(latest.errno, problem) if latest.errno else StorageError(problem)
        if latest is not None and not latest.is_over:
            if not patient:
                return None
            waited_for.add(latest.token)
            silence = heartbeats.note(latest.token, claim_file.modified(folder, latest.number))
            if not latest.owner.is_lost(silence, liveness.LOST_WRITER_SECONDS):
                world.sleep(pause)
                pause = min(2 * pause, _LAST_POLL_SECONDS)
                continue
        try:
            mine = claim_file.make(folder, latest.number + 1 if latest else 1)
        except StorageError as error:
            if error.errno not in FULL:
                raise
            if not give_way() and claim_file.latest(folder) == latest:  # else another process has made room
                raise
            continue
        if mine is None:
            continue
        if is_done():  # finished, and its claims removed, between our look and our claim
            claim_file.remove(folder)
            return None
        return mine, latest
    return None


def forget(folder: OpenFolder) -> None:
    """Removes claims of owners who are surely done or dead, in the folder and in the folders directly below it.

    Only what belongs to the folder's owner is removed, and no link is followed. The folder itself is left.

    Raises:
        OSError: the folder cannot be read, or a claim cannot be removed.
    """
    for below in _shares(folder):
        _forget_in(below)
        with suppress(OSError):  # another process has made a claim since
            folder.rmdir(below.path.name)
    _forget_in(folder)


def _forget_in(folder: OpenFolder) -> None:
    latest = claim_file.latest_in(folder)
    if _holder(folder) is None:
        claim_file.remove_in(folder, up_to=latest.number if latest else 0)
