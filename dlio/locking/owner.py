"""Liveness of processes on this machine: identifies the process that owns a piece of work, and finds out if it runs.

An owner is a process id with its start time, in a process-id namespace, since a boot of a kernel. Linux reuses ids, so
the start time in /proc/PID/stat (see proc(5)) belongs to the identity. A host name does not: containers share one, on
the same machine or on two. Claims, leases and unfinished output name their owners. Whether a process on another machine
lives is the subject of `dlio.cluster.liveness`.

As text, in the names of folders, an owner is `<host>@<boot id>@<namespace>@<pid>@<start time>`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from dlio.io import world

_TEXT = re.compile(
    r"(?P<host>[^@/]+)@(?P<boot>[^@/]+)@(?P<namespace>\d+)@(?P<pid>\d{1,10})@(?P<started>\d{1,20})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Owner:
    """The identity of a process: its node, process-id namespace, id, and start time in clock ticks."""

    node: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Owner:
        """Returns this process."""
        return cls(node_id(), _namespace(), world.pid(), world.start_time(world.pid()) or 0)

    @classmethod
    def from_json(cls, record: Any) -> Owner:
        """Returns the owner in a JSON value, which another user may have written.

        Raises:
            ValueError: it is not one.
        """
        if isinstance(record, dict) and set(record) == {"node", "namespace", "pid", "started"}:
            texts, numbers = (record["node"], record["namespace"]), (record["pid"], record["started"])
            are_numbers = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
            if are_numbers and all(isinstance(text, str) for text in texts):
                return cls(*texts, *numbers)
        raise ValueError("expected the node, the namespace, the pid and the start of a process")

    @classmethod
    def from_text(cls, text: str) -> Owner | None:
        """Returns the owner that `str` gave this text; None if it is not one."""
        if (found := _TEXT.fullmatch(text)) is None:
            return None
        node, namespace = f"{unquote(found['host'])}/{found['boot']}", f"pid:[{found['namespace']}]"
        return cls(node, namespace, int(found["pid"]), int(found["started"]))

    def to_json(self) -> dict[str, Any]:
        """Returns the owner as a dictionary of plain values, quicker than `asdict` does."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        namespace = self.namespace.removeprefix("pid:[").removesuffix("]")
        return "@".join((quote(self.host, safe=""), self._boot, namespace, str(self.pid), str(self.started)))

    @property
    def host(self) -> str:
        """The name of the owner's host, for messages."""
        return self.node.partition("/")[0]

    @property
    def process(self) -> str:
        """The process, for messages; another user may have written its host's name."""
        return f"process {self.pid} on {self.host[:64]}"

    @property
    def is_of_earlier_boot(self) -> bool:
        """Whether this host, or another of its name, has been booted since the owner ran; not for shared folders."""
        return self.host == world.host() and self._boot != world.boot_id()

    @property
    def _boot(self) -> str:
        return self.node.partition("/")[2]

    def is_alive(self, user: int | None = None) -> bool | None:
        """Returns whether the process still runs; None if that cannot be known from here.

        Returns None as well for a process of another user than `user`, if that is given: a user may name any process.
        """
        if (self._boot, self.namespace) != (world.boot_id(), _namespace()):
            return None
        started = world.start_time(self.pid)
        if started is None and _is_hidden(self.pid):
            return None
        if started != self.started:
            return False
        return True if user is None or user_of(self.pid) == user else None

    def is_lost(self, silent: float, patience: float, user: int | None = None) -> bool:
        """Returns whether the process has ended; if it is not visible from here, whether it is silent for too long.

        Args:
            silent: seconds since its last heartbeat.
            patience: the most that these may be.
            user: see `is_alive`.
        """
        alive = self.is_alive(user)
        return silent > patience if alive is None else not alive


def node_id() -> str:
    """Returns a name that is the same for all processes of this machine and unique to it: `<host name>/<boot id>`.

    Raises:
        LauncherError: the kernel's boot id cannot be read.
    """
    return f"{world.host()}/{world.boot_id()}"


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  asked for with every record of a node


def outermost(pid: int, user: int) -> int:
    """Returns the farthest ancestor of `pid` that is reached through processes of this user only; or `pid` itself."""
    while (parent := _parent_of(pid)) and user_of(parent) == user:
        pid = parent
    return pid


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def user_of(pid: int) -> int | None:
    """Returns the user id of a process; None if it has ended or is hidden."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _is_hidden(pid: int) -> bool:
    """Returns whether a process exists that /proc hides: another user's, if /proc is mounted with hidepid."""
    if Path(f"/proc/{pid}/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False
