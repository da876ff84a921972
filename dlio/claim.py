"""Claims: of all processes that want one piece of work done in one folder, one does it and the others wait.

Claims are numbered files. Claim n + 1 is made, by link(2), only by a process that saw claim n's owner dead or done, and
of several that try, the system lets one succeed. Nothing is ever taken away from a live owner, no lock is needed (flock
may answer ENOSYS on shared file systems), and there is no moment between looking and taking.

Where the owner's process can be looked at, a dead one is known at once. Elsewhere, on another node or in another
container, its heartbeat tells: the claim's modification time, renewed every second.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dlio import files
from dlio.errors import StorageError
from dlio.owner import Owner

BEAT_SECONDS = 1.0
PRESUMED_DEAD_SECONDS = 30.0  # far above a beat: a writer may hang for long on a loaded shared file system
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.01, 0.2


@dataclass(frozen=True, slots=True)
class Claim:
    """One numbered claim file as read.

    Attributes:
        number: counts up; the highest is in force.
        owner: who made it.
        token: a name of its own, for the owner's unfinished files.
        state: "held", "released" (another may go on), or why the owner failed.
        errno: the system's number of that failure, if it has one.
    """

    number: int
    owner: Owner
    token: str
    state: str = "held"
    errno: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the owner surely does nothing any more."""
        return self.state != "held" or self.owner.is_alive() is False


@contextmanager
def claimed(
    folder: Path, is_done: Callable[[], bool], *, patient: bool = True
) -> Iterator[tuple[Claim, Claim | None] | None]:
    """Yields this process's claim and the one it succeeds, or None once another process has done the work.

    An impatient caller gets None as well where another process is doing the work.

    The body does the work when it gets a claim; leaving it well removes the claims, so `is_done` must hold by then.
    An exception passes on its message to those who wait; one that is no Exception (an interrupt) leaves the work to
    the next of them.

    Args:
        folder: where the claims lie; made by this call, and shared by those who want the same work.
        is_done: whether the work is done; called often, by processes that wait.
        patient: wait for another process that has a claim.

    Raises:
        StorageError: the folder cannot be written, or the process that this one waited for failed.
    """
    succeeded = _wait_for_claim(folder, is_done, patient)
    if succeeded is None:
        yield None
        return
    mine, previous = succeeded
    path = folder / str(mine.number)
    with _heart(path):
        try:
            yield mine, previous
            _remove(folder)
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            _rewrite(path, replace(mine, state=f"failed: {error}", errno=number))
            raise
        except BaseException:
            _rewrite(path, replace(mine, state="released"))
            raise


@contextmanager
def alone(folder: Path, work: str) -> Iterator[None]:
    """Keeps other processes from the same work until the context is left; the folder of the claims is gone then.

    Args:
        folder: where the claims lie; made by this call.
        work: what is done, for the error: `dlio pack into /data/packed`.

    On a file system without hard links nobody is kept from anything.

    Raises:
        StorageError: another process is at it, which is said at once if it is on this machine, or after its next
            heartbeat; or the folder cannot be written.
    """
    try:
        mine = _succeed(folder, work)
    except StorageError as error:
        if error.errno not in _NO_LINKS:
            raise
        yield
        return
    try:
        with _heart(folder / str(mine.number)):
            yield
    finally:
        _remove(folder)
        with suppress(OSError):  # somebody else has made a claim since
            folder.rmdir()


def _succeed(folder: Path, work: str) -> Claim:
    """Returns the claim made after that of an owner who is done or dead."""
    while True:
        latest = _latest(folder)
        if latest is not None and _is_at_work(folder, latest):
            host, pid = latest.owner.node.partition("/")[0], latest.owner.pid
            problem = f"another {work} is under way, by process {pid} on {host}: wait until it ends, or end it"
            raise StorageError(errno.EBUSY, problem)
        if mine := _make(folder, latest.number + 1 if latest else 1):
            return mine


@contextmanager
def _heart(path: Path) -> Iterator[None]:
    """Renews the modification time of a claim."""
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, stop), name="dlio-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _is_at_work(folder: Path, claim: Claim) -> bool:
    """Tells whether a claim is in force; where its owner cannot be seen, whether its heart beats, by waiting for it."""
    if claim.is_over or claim.owner.is_alive():
        return not claim.is_over
    path = folder / str(claim.number)
    beat, deadline = _modified(path), time.monotonic() + PRESUMED_DEAD_SECONDS
    while time.monotonic() < deadline and (found := _modified(path)):
        if found != beat:
            return True
        time.sleep(_LAST_POLL_SECONDS)
    return False


def is_in_progress(folder: Path) -> bool:
    """Returns whether somebody holds a claim in the folder or in a folder below it, and may be alive."""
    if any(is_in_progress(below) for below in folder.glob("*/")):
        return True
    latest = _latest(folder)
    if latest is None or latest.is_over:
        return False
    silent = time.time() - _modified(folder / str(latest.number))
    return latest.owner.is_alive() is True or silent < PRESUMED_DEAD_SECONDS


def _wait_for_claim(
    folder: Path, is_done: Callable[[], bool], patient: bool
) -> tuple[Claim, Claim | None] | None:
    """Returns the claim made and the one before it, or None when the work is done, or waiting is not wanted."""
    waited_for: set[str] = set()
    beat, seen_at, pause = 0.0, time.monotonic(), _FIRST_POLL_SECONDS
    while not is_done():
        latest = _latest(folder)
        if latest is not None and latest.state.startswith("failed") and latest.token in waited_for:
            problem = f"the process {latest.owner.pid} that staged for this node {latest.state}"
            raise StorageError(latest.errno, problem) if latest.errno else StorageError(problem)
        if latest is not None and not latest.is_over:
            if not patient:
                return None
            waited_for.add(latest.token)
            last_beat = _modified(folder / str(latest.number))
            has_beaten = last_beat != beat
            if has_beaten:
                beat, seen_at = last_beat, time.monotonic()
            if has_beaten or latest.owner.is_alive() or time.monotonic() - seen_at < PRESUMED_DEAD_SECONDS:
                time.sleep(pause)
                pause = min(2 * pause, _LAST_POLL_SECONDS)
                continue
        mine = _make(folder, latest.number + 1 if latest else 1)
        if mine is None:
            continue
        if is_done():  # finished, and its claims removed, between our look and our claim
            _remove(folder)
            return None
        return mine, latest
    return None


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        try:
            os.utime(path)
        except OSError:
            return  # the file system is failing; the work itself will say so


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _latest(folder: Path) -> Claim | None:
    try:
        numbers = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
        return _parse(max(numbers), (folder / str(max(numbers))).read_text()) if numbers else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(error.errno, f"cannot read the claims in {folder}: {error.strerror}") from error


def _parse(number: int, text: str) -> Claim:
    try:
        record = json.loads(text)
        owner, token, state = Owner(**record["owner"]), str(record["token"]), str(record["state"])
        return Claim(number, owner, token, state, record.get("errno"))
    except (ValueError, KeyError, TypeError):  # cut off by a crash of the machine, since when nobody lives
        return Claim(number, Owner("", "", 0, 0), "unknown", "released")


def _make(folder: Path, number: int) -> Claim | None:
    """Returns this process's claim with that number, or None where another process made it first."""
    claim = Claim(number, Owner.current(), os.urandom(8).hex())
    aside = folder / f".{claim.token}"
    with files.storage_errors("claim", folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            aside.write_text(_text(claim))
            os.link(aside, folder / str(number))
        except (FileExistsError, FileNotFoundError):  # made by another, or removed with the whole folder
            return None
        finally:
            aside.unlink(missing_ok=True)
    return claim


def _text(claim: Claim) -> str:
    record = {"owner": asdict(claim.owner), "token": claim.token, "state": claim.state, "errno": claim.errno}
    return json.dumps(record)


def _rewrite(path: Path, claim: Claim) -> None:
    """Says in the claim how it ended; where even that fails, the owner's death says it."""
    aside = path.with_name(f".{claim.token}")
    try:
        aside.write_text(_text(claim))
        aside.replace(path)
    except OSError:
        return


def forget(folder: Path) -> None:
    """Removes the claims in the folder, and in those below it, of owners who are surely done or dead."""
    for below in folder.glob("*/"):
        forget(below)
    latest = _latest(folder)
    if not is_in_progress(folder):
        with suppress(FileNotFoundError):
            _remove(folder, up_to=latest.number if latest else 0)
    with suppress(OSError):  # somebody has made a claim since
        folder.rmdir()


def _remove(folder: Path, up_to: int | None = None) -> None:
    """Removes the claims on work that is done, those with higher numbers excepted."""
    for path in folder.iterdir():
        later = up_to is not None and path.name.isdecimal() and int(path.name) > up_to
        if not later and not path.is_dir():
            path.unlink(missing_ok=True)
