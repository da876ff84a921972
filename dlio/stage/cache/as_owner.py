"""Runs root's work on a user's copy with the rights of that user only.

The owner of a copy controls its folders, its manifest, and the source that it names. A process that has become that
user can do no more with them than the user can: links give no new access, and no secret of root's is sent anywhere.
"""

from __future__ import annotations

import importlib
import json
import os
import pwd
import select
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar, cast

from dlio.errors import DlioError, StorageError
from dlio.io import files

PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 1.0
_NOBODY = 65534
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ")

T = TypeVar("T")


def as_owner(owner: int, work: Callable[[], T], patience_seconds: float = PATIENCE_SECONDS) -> T:
    """Returns what `work` returns when the user `owner` calls it: a JSON value; to be called before threads start.

    Root runs it in a child process that becomes that user, without root's environment. The child is killed if it reads
    nothing for `patience_seconds`, since its user may have stopped it, or made it read from something that never
    answers. Other users run it in this process.

    Raises:
        DlioError: `work` raised it; from a child process, a StorageError of the same text.
        StorageError: the caller is neither the owner nor root, or the child process died.
    """
    if os.geteuid() == owner:
        return work()
    if os.geteuid() != 0:
        raise StorageError(f"it belongs to the user {owner}: only this user or root can do it")
    answer = _in_a_child(owner, work, patience_seconds)
    if "error" in answer:
        raise StorageError(str(answer["error"]))
    return cast(T, answer.get("value"))


def _in_a_child(owner: int, work: Callable[[], object], patience_seconds: float) -> dict[str, object]:
    importlib.import_module("dlio.io.sizes")  # loaded while this process can read root's Python; so are the digests
    for algorithm in files.ALGORITHMS:
        files.new_hash(algorithm)
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, owner, work)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            text = _read_while_it_goes_on(pipe, child, patience_seconds)
    except BaseException:
        os.kill(child, signal.SIGKILL)  # the next run takes over its unfinished files
        raise
    finally:
        status = os.waitpid(child, 0)[1]
    if text is None:
        raise StorageError(f"the process that did it for the user {owner} read nothing for {patience_seconds:.0f} s")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        code = os.waitstatus_to_exitcode(status)
        raise StorageError(f"the process that did it for the user {owner} died with the exit code {code}")
    return answer


def _read_while_it_goes_on(pipe: FileIO, child: int, patience_seconds: float) -> bytes | None:
    """Returns all that a child sends, or None if it was killed since it did nothing for `patience_seconds`."""
    parts: list[bytes] = []
    progress, deadline = "", time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        if select.select([pipe], [], [], _LOOK_SECONDS)[0]:
            if not (part := pipe.read(1 << 16)):
                return b"".join(parts)
            parts.append(part)
        if (now := Path(f"/proc/{child}/io").read_text()) != progress:
            progress, deadline = now, time.monotonic() + patience_seconds
    os.kill(child, signal.SIGKILL)
    return None


def _answer(writer: int, owner: int, work: Callable[[], object]) -> None:
    """Runs the work in the child and sends its result; does not return."""
    code = 1
    try:
        become(owner, descriptors=(1, 2, writer))
        try:
            answer: dict[str, object] = {"value": work()}
        except DlioError as error:
            answer = {"error": error.text}
        except ImportError as error:
            answer = {"error": f"the user {owner} cannot load root's Python: {error}: install it where all can read it"}
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become_user_of_job() -> None:
    """Has root's process in a Prolog of SLURM become the job's user, to whom all is to belong that it makes."""
    user = os.environ.get("SLURM_JOB_UID", "0")
    in_prolog = os.environ.get("SLURM_SCRIPT_CONTEXT") == "prolog_slurmd" and user.isdecimal()
    if os.geteuid() == 0 and in_prolog and int(user):
        _go_on_behind_pipes()
        become(int(user), [name for name in os.environ if name.startswith(("SLURM", "DLIO_"))], (1, 2))


def _go_on_behind_pipes() -> None:
    """Goes on in a child process, whose standard output and error are pipes to this one.

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


def _pass_on(targets: dict[int, int]) -> None:
    """Writes what comes from each of the descriptors to another, until all have ended."""
    while targets:
        for reader in select.select(list(targets), [], [])[0]:
            if data := os.read(reader, 1 << 16):
                with suppress(OSError):  # nobody reads it any more
                    os.write(targets[reader], data)
            else:
                del targets[reader]


def become(user: int, also_kept: Collection[str] = (), descriptors: Collection[int] = ()) -> None:
    """Gives up root's rights for good, and with them its environment and open files, but for those named.

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
