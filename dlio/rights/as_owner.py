"""Runs root's work on what users have on a node: in a child process that is killed when its time is over.

A user may stop a process of theirs, freeze a file system that they serve, or make millions of files. So root's process
itself does not touch what they have, but waits for a child, and no longer than it was told.

Where the child has become the user, it can do no more than the user can: links give no new access, and no secret of
root's is sent anywhere.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import pwd
import selectors
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlio.errors import DlioError, StorageError
from dlio.io import files, limits
from dlio.rights.patience import Patience

_LOOK_SECONDS = 0.5
_END_SECONDS = 1.0  # for a child to end: one that a frozen file system holds is left to the system
_NOBODY = 65534
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ")


def as_owner(
    owner: int, work: Callable[[], Iterable[Any]], patience: Patience | None = None, share: float = 1
) -> Iterator[Any]:
    """Yields the JSON values that `work` yields as the user `owner`; to be used before threads start.

    Root runs it in a child process that becomes that user, without root's environment. The owner runs it in this
    process, without a limit of time.

    Args:
        owner: the id of the user.
        work: what is done.
        patience: of the command; that of one alone by default.
        share: the part of the patience that this work may use up, so that some is left for what follows.

    Raises:
        DlioError: `work` raised it; from a child process, a StorageError of the same text.
        StorageError: the caller is neither the owner nor root, the child process died, or its time was over.
    """
    if os.geteuid() == owner:
        yield from work()
    elif os.geteuid() == 0:
        yield from _in_a_child(owner, work, patience or Patience(), share)
    else:
        raise StorageError(f"it belongs to the user {owner}: only this user or root can do it")


def in_time(work: Callable[[], Iterable[Any]], patience: Patience, share: float = 1) -> Iterator[Any]:
    """Yields the JSON values that `work` yields, until its time is over; to be used before threads start.

    Root's work is killed at any point, another user's ends after one of its values: what it meets is its own.

    Raises:
        DlioError: as `as_owner`.
    """
    if os.geteuid() == 0:
        yield from _in_a_child(None, work, patience, share)
        return
    part = patience.part(share)
    deadline = time.monotonic() + part.seconds
    for value in work():
        yield value
        if time.monotonic() > deadline:
            raise part.over()


def _in_a_child(user: int | None, work: Callable[[], Iterable[Any]], patience: Patience, share: float) -> Iterator[Any]:
    if user is not None:  # load what the user may not be able to read
        importlib.import_module("dlio.io.sizes")
        for algorithm in files.ALGORITHMS:
            files.new_hash(algorithm)
    sys.stdout.flush()
    sys.stderr.flush()
    with limits.starting("a process of the copy's owner"):
        reader, writer = os.pipe()
        child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, user, work)
    os.close(writer)
    whose = "" if user is None else f" for the user {user}"
    try:
        for line in _lines(reader, child, patience, share):
            kind, value = json.loads(line)
            if kind == "error":
                raise StorageError(value)
            if kind == "log":
                logging.getLogger(value[0]).log(value[1], "%s", value[2])
            else:
                yield value
    except BaseException:
        os.kill(child, signal.SIGKILL)  # the next run takes over its unfinished files
        raise
    finally:
        os.close(reader)
        before = time.monotonic()
        code = _end(child)
        patience.use(time.monotonic() - before)
    if code:
        raise StorageError(f"the process that worked{whose} died with the exit code {code}")


def _lines(reader: int, child: int, patience: Patience, share: float) -> Iterator[bytes]:
    """Yields the lines that a child sends; raises StorageError when its share of the time is over."""
    part, text, lag, moved, before = patience.part(share), b"", 0.0, 0.0, time.monotonic()
    try:
        while True:
            ready = _readable([reader], max(0.0, min(_LOOK_SECONDS, part.seconds - lag)))
            now, done = time.monotonic(), min(_bytes_moved(child), part.most_bytes) if part.rate < math.inf else 0
            lag = max(0.0, lag + now - before - (done - moved) / part.rate)
            moved, before = done, now
            if ready:
                if not (data := os.read(reader, 1 << 16)):
                    return
                *lines, text = (text + data).split(b"\n")
                yield from lines
            if lag >= part.seconds:
                raise part.over()
    finally:
        patience.use(lag, moved)


def _bytes_moved(child: int) -> int:
    """Returns the bytes that a process has read and written so far, see proc(5); 0 if this root may not know."""
    try:
        rows = [line.split() for line in Path(f"/proc/{child}/io").read_text().splitlines()]
    except OSError:  # a container without CAP_SYS_PTRACE: the deadline is then one for all of the work
        return 0
    return sum(int(number) for name, number in rows if name in ("rchar:", "wchar:"))


def _end(child: int) -> int:
    """Returns the exit code of a child that is ending; one that does not end, as a stopped one, is killed and left."""
    deadline, pause = time.monotonic() + _END_SECONDS, 0.001
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            return -signal.SIGKILL
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return os.waitstatus_to_exitcode(ended[1])


class _Sending(logging.Handler):
    """Sends what a child logs to its parent, which logs it."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send("log", [record.name, record.levelno, record.getMessage()])


def _answer(writer: int, user: int | None, work: Callable[[], Iterable[Any]]) -> None:
    """Runs the work in the child and sends what it yields; does not return."""
    code = 1

    def send(kind: str, value: Any) -> None:
        line = json.dumps([kind, value]).encode() + b"\n"
        while line:
            line = line[os.write(writer, line) :]

    try:
        logging.getLogger().handlers[:] = [_Sending(send)]
        if user is not None:
            switch_user(user, descriptors=(1, 2, writer))
        try:
            for value in work():
                send("value", value)
        except DlioError as error:
            send("error", error.text)
        except ImportError as error:
            send("error", f"the user {user} cannot load root's Python: {error}: install it where all can read it")
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the parent was killed: nobody is left to be told
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def switch_to_job_user() -> None:
    """Makes root's process in a Prolog of SLURM the job's user, who will own all that it makes."""
    user = os.environ.get("SLURM_JOB_UID", "0")
    in_prolog = os.environ.get("SLURM_SCRIPT_CONTEXT") == "prolog_slurmd" and user.isdecimal()
    if os.geteuid() == 0 and in_prolog and int(user):
        _go_on_behind_pipes()
        switch_user(int(user), [name for name in os.environ if name.startswith(("SLURM", "DLIO_"))], (1, 2))


def _go_on_behind_pipes() -> None:
    """Continues in a child process, whose standard output and error are pipes to this one.

    This process stays root's, passes on what the child says, and ends with its exit code. So the user gets no
    descriptor of root's log.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = {target: os.pipe() for target in (1, 2)}
    child = os.fork()
    for target, (reader, writer) in pipes.items():
        if child == 0:
            os.dup2(writer, target)
            os.close(reader)
        os.close(writer)
    if child:
        _pass_on({reader: target for target, (reader, _) in pipes.items()})
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)


def _readable(readers: Iterable[int], seconds: float | None = None) -> list[int]:
    """Returns those of some pipes that can be read, after waiting for one; there may be more than 1,024 open files."""
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(seconds)]


def _pass_on(targets: dict[int, int]) -> None:
    """Writes what comes from each of the descriptors to another, until all have ended."""
    while targets:
        for reader in _readable(targets):
            if data := os.read(reader, 1 << 16):
                with suppress(OSError):  # nobody reads it any more
                    while data:
                        data = data[os.write(targets[reader], data) :]
            else:
                del targets[reader]


def switch_user(user: int, also_kept: Collection[str] = (), descriptors: Collection[int] = ()) -> None:
    """Gives up root's rights permanently, and with them its environment and open files, except for those named.

    Args:
        user: the id of the user.
        also_kept: variables.
        descriptors: of open files; the standard input becomes /dev/null.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  of descriptors
        if int(name) not in (0, *descriptors):
            with suppress(OSError):  # the listing's own
                os.close(int(name))
    try:
        entry = pwd.getpwuid(user)
        name, group, home = entry.pw_name, entry.pw_gid, entry.pw_dir
        os.initgroups(name, group)
    except KeyError:  # the account no longer exists
        group, home = _NOBODY, "/"
        os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    kept = {variable: os.environ[variable] for variable in (*_KEPT, *also_kept) if variable in os.environ}
    os.environ.clear()
    os.environ.update(kept, HOME=home)
