"""What the engine of staging reaches of the system: the interface of `dlio.io.world`.

Methods with the names of Python's own promise what those promise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Address = tuple[str, int]


class Thread(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, or for this many seconds."""

    def is_alive(self) -> bool:
        """Returns whether it runs still."""


class Lock(Protocol):
    """As `threading.Lock`, in a `with` statement or called."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> bool | None: ...


class Condition(Protocol):
    """As `threading.Condition`, whose lock nobody takes twice."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def notify(self, n: int = 1) -> None: ...
    def notify_all(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> bool | None: ...


class Event(Protocol):
    """As `threading.Event`."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Socket(Protocol):
    """The part of `socket.socket` that is used; stream sockets only."""

    def accept(self) -> tuple[Socket, Any]: ...
    def bind(self, address: Any, /) -> None: ...
    def listen(self, backlog: int = ..., /) -> None: ...
    def connect(self, address: Any, /) -> None: ...
    def sendall(self, data: Any, flags: int = 0, /) -> None: ...
    def recv(self, bufsize: int, flags: int = 0, /) -> bytes: ...
    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def settimeout(self, value: float | None, /) -> None: ...
    def gettimeout(self) -> float | None: ...
    def getsockname(self) -> Any: ...
    def getpeername(self) -> Any: ...
    def fileno(self) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Selector(Protocol):
    """Waits for sockets that can be read; for one thread."""

    def register(self, peer: Socket, data: object) -> None:
        """Adds a socket, with what `select` returns for it."""

    def unregister(self, peer: Socket) -> None:
        """Removes a socket."""

    def select(self, timeout: float | None = None) -> list[Any]:
        """Returns the data of the sockets that can be read, after waiting for one; empty after this many seconds."""

    def close(self) -> None:
        """Ends it; the sockets stay open."""


class World(Protocol):
    """The system, or what is in its place."""

    def monotonic(self) -> float:
        """Returns the monotonic clock, in seconds."""

    def wall(self) -> float:
        """Returns the time of day, in seconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Sleeps for this many seconds."""

    def start(self, call: Callable[[], object], name: str) -> Thread:
        """Returns a new daemon thread that makes a call; raises MissingError, which names the system's limit."""

    def lock(self) -> Lock:
        """Returns a lock."""

    def condition(self) -> Condition:
        """Returns a condition with its own lock."""

    def event(self) -> Event:
        """Returns an event that is not set."""

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes that nobody can guess."""

    def pid(self) -> int:
        """Returns this process's id."""

    def boot_id(self) -> str:
        """Returns what is the same for all processes of this boot of this machine; raises LauncherError."""

    def host(self) -> str:
        """Returns the name of this machine."""

    def start_time(self, pid: int) -> int | None:
        """Returns when a process started, in clock ticks since boot; None if it has ended, exits, or is a zombie."""

    def address(self) -> str:
        """Returns the address of this node that other nodes reach; raises UsageError if DLIO_INTERFACE names none."""

    def listen(self, host: str, backlog: int) -> Socket:
        """Returns a TCP socket that listens at any port of an address; raises OSError."""

    def connect(self, address: Address, seconds: float) -> Socket:
        """Returns a TCP connection, whose calls time out after this many seconds; raises OSError."""

    def unix_socket(self) -> Socket:
        """Returns a Unix stream socket, not bound, that only this user may connect to once it is; raises OSError."""

    def user_of(self, peer: Socket) -> int:
        """Returns the user id of the process at the other end of a Unix connection; raises OSError."""

    def limit(self, peer: Socket, seconds: float) -> None:
        """Ends each call on a connection after this many seconds, with BlockingIOError; see `System.limit`."""

    def keep_alive(self, peer: Socket) -> None:
        """Sends small frames of a TCP connection at once, and notices one whose other end has ended."""

    def selector(self) -> Selector:
        """Returns an empty selector."""

    def send_file(self, peer: Socket, descriptor: int, begin: int, count: int) -> int:
        """Sends a range of a file that never enters this process's memory; returns how much; raises OSError."""

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """As `os.open`."""

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        """As `os.pread`."""

    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        """As `os.preadv`."""

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        """As `os.pwrite`."""

    def fsync(self, descriptor: int) -> None:
        """As `os.fsync`."""

    def replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """As `os.replace`."""

    def names(self, folder: int) -> list[str]:
        """As `os.listdir`, of a descriptor."""

    def touch(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Sets a file's time to the present of its file system, as a write does; follows no link; raises OSError."""

    def changed(self, status: os.stat_result) -> float:
        """Returns when a file was last changed or touched, to be compared with `wall`; no user can set it."""
