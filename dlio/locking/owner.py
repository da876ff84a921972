"""Who does a piece of work: a process, told apart from every other one, and whether it still runs.

An owner is a process id with its start time, on a node, in a process-id namespace. Linux gives ids anew, so the id
alone does not tell; the start time, in /proc/PID/stat (see proc(5)), does.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlio.errors import LauncherError

_PF_EXITING = 0x4  # in the flags of /proc/PID/stat, see linux/sched.h: killed, and freeing its memory


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that can be told from every other one: where it runs, its id, and when it started, in clock ticks."""

    node: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Owner:
        """Returns this process."""
        return cls(node_id(), _namespace(), os.getpid(), start_time(os.getpid()) or 0)

    @classmethod
    def from_json(cls, record: Any) -> Owner:
        """Returns the owner that a file names, which may be another user's.

        Raises:
            ValueError: it names none.
        """
        if isinstance(record, dict) and set(record) == {"node", "namespace", "pid", "started"}:
            texts, numbers = (record["node"], record["namespace"]), (record["pid"], record["started"])
            if all(isinstance(text, str) for text in texts) and all(type(number) is int for number in numbers):
                return cls(*texts, *numbers)
        raise ValueError("expected the node, the namespace, the pid and the start of a process")

    def is_alive(self, user: int | None = None) -> bool | None:
        """Returns whether the process still runs; None where that cannot be known from here.

        A process that runs, but not as `user`, is not known: another user may have named any.
        """
        if (self.node, self.namespace) != (node_id(), _namespace()):
            return None
        started = start_time(self.pid)
        if started is None and _is_hidden(self.pid):
            return None
        if started != self.started:
            return False
        return True if user is None or user_of(self.pid) == user else None


def node_id() -> str:
    """Returns a name for this machine that all its processes share and no other machine has: `<host name>/<boot id>`.

    Raises:
        LauncherError: the kernel's boot id cannot be read.
    """
    source = Path("/proc/sys/kernel/random/boot_id")
    try:
        boot = source.read_text().strip()
    except OSError as error:
        raise LauncherError(f"{source}: cannot read the boot id that identifies this node: {error.strerror}") from error
    return f"{socket.gethostname()}/{boot}"


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def outermost(pid: int, user: int) -> int:
    """Returns the process that started `pid`, directly or through others, all of them this user's; or `pid` itself."""
    while (parent := _parent_of(pid)) and user_of(parent) == user:
        pid = parent
    return pid


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def user_of(pid: int) -> int | None:
    """Returns the user id of a process, None where it is gone or hidden."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _is_hidden(pid: int) -> bool:
    """Returns whether /proc hides a process that is there: another user's, where it is mounted with hidepid."""
    if Path(f"/proc/{pid}/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def start_time(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None where it is gone, about to go, or a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    after_name = status.rpartition(")")[2].split()  # the name may hold spaces and brackets, see proc(5)
    is_over = after_name[0] in "ZX" or int(after_name[6]) & _PF_EXITING
    return None if is_over else int(after_name[19])
