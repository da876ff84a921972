"""The seam between the engine of staging and the system: clock, threads, connections, files, identity and chance.

The engine, its protocol, its meetings and its clients reach the system through these functions only
(tests/test_import.py), so the same code runs in a simulator: in virtual time, with as many nodes in one process as
asked for, and every order of events drawn from a seed. There `installed` puts others instead of these functions.

Whatever waits, takes time, can fail, or differs between two runs goes through here. Paths are checked directly
(`Path.exists`, `Path.stat`): of a disk the simulator has what it does with what is written to it.

Threads, locks and sockets are Python's own. The simulator has as much of them as is used: stream sockets, and
conditions whose lock nobody takes twice.

Functions that connect import `socket` and `selectors` when they are called: a process that only reads files saves 3 ms.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event, Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Any

from dlio.errors import LauncherError
from dlio.io import limits

if TYPE_CHECKING:
    from socket import socket as Socket  # noqa: N812

__all__ = ["Address", "Condition", "Event", "Lock", "Selector", "Semaphore", "Socket", "Thread"]

Address = tuple[str, int]

# As `socket` has them on Linux, without its import.
SHUT_RDWR, MSG_MORE, MSG_PEEK, MSG_WAITALL = 2, 0x8000, 2, 0x100

_LIMIT = struct.Struct("@ll")  # a struct timeval
_CREDENTIALS = struct.Struct("=iII")  # process, user, group: struct ucred of unix(7)
_PF_EXITING = 0x4  # in the flags of /proc/PID/stat, see linux/sched.h: killed, and freeing its memory

monotonic = time.monotonic
wall = time.time
sleep = time.sleep
lock = Lock
condition = Condition
event = Event
semaphore = Semaphore
random_bytes = os.urandom
pid = os.getpid


def start(call: Callable[[], object], name: str) -> Thread:
    """Returns a new daemon thread that makes a call; raises MissingError, which names the system's limit."""
    thread = Thread(target=call, name=name, daemon=True)
    with limits.starting("a thread"):
        thread.start()
    return thread


def host() -> str:
    """Returns the name of this machine."""
    return os.uname().nodename


def address() -> str:
    """Returns the address of this node that other nodes reach; raises UsageError if DLIO_INTERFACE names none."""
    from dlio.io.world.own_address import host_address

    return host_address()


def boot_id() -> str:
    """Returns what is the same for all processes of this boot of this machine; raises LauncherError."""
    source = Path("/proc/sys/kernel/random/boot_id")
    try:
        return source.read_text().strip()
    except OSError as error:
        reason = limits.reached(error) or error.strerror
        raise LauncherError(f"{source}: cannot read the boot id that identifies this node: {reason}") from error


def start_time(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None if it has ended, exits, or is a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    after_name = status.rpartition(")")[2].split()  # the name may hold spaces and brackets, see proc(5)
    is_over = after_name[0] in "ZX" or int(after_name[6]) & _PF_EXITING
    return None if is_over else int(after_name[19])


def listen(host: str, backlog: int) -> Socket:
    """Returns a TCP socket that listens at any port of an address; raises OSError."""
    import socket

    return socket.create_server((host, 0), backlog=backlog)


def connect(address: Address, seconds: float) -> Socket:
    """Returns a TCP connection, whose calls time out after this many seconds; raises OSError."""
    import socket

    return socket.create_connection(address, seconds)


def unix_socket() -> Socket:
    """Returns a Unix stream socket, not bound, that only this user may connect to once it is; raises OSError."""
    import socket

    found = socket.socket(socket.AF_UNIX)
    os.fchmod(found.fileno(), 0o600)  # before it has a name
    return found


def user_of(peer: Socket) -> int:
    """Returns the user id of the process at the other end of a Unix connection; raises OSError."""
    import socket

    return int(_CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])


def limit(peer: Socket, seconds: float) -> None:
    """Makes the kernel end each call on a connection after this many seconds, with BlockingIOError.

    So one call can receive or send a whole body. With a timeout of Python's the kernel would not wait, and Python
    would wake up for each part that arrives.
    """
    import socket

    peer.settimeout(None)
    timeval = _LIMIT.pack(int(seconds), round(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        peer.setsockopt(socket.SOL_SOCKET, option, timeval)


def keep_alive(peer: Socket) -> None:
    """Sends small frames of a TCP connection at once, and notices one whose other end has ended."""
    import socket

    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def selector() -> Selector:
    """Returns an empty selector."""
    return Selector()


def send_file(peer: Socket, descriptor: int, begin: int, count: int) -> int:
    """Sends a range of a file that never enters this process's memory; returns how much; raises OSError."""
    return os.sendfile(peer.fileno(), descriptor, begin, count)


def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:  # noqa: A001
    """As `os.open`, which is looked up at each call; so are those below."""
    return os.open(path, flags, mode, dir_fd=dir_fd)


def pread(descriptor: int, count: int, offset: int) -> bytes:
    """As `os.pread`."""
    return os.pread(descriptor, count, offset)


def preadv(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
    """As `os.preadv`."""
    return os.preadv(descriptor, buffers, offset)


def pwrite(descriptor: int, data: Any, offset: int) -> int:
    """As `os.pwrite`."""
    return os.pwrite(descriptor, data, offset)


def fsync(descriptor: int) -> None:
    """As `os.fsync`."""
    os.fsync(descriptor)


def replace(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    """As `os.replace`."""
    os.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


def names(folder: int) -> list[str]:
    """As `os.listdir`, of a descriptor."""
    return os.listdir(folder)


def touch(path: Any, *, dir_fd: int | None = None) -> None:
    """Sets a file's time to the present of its file system, as a write does; follows no link; raises OSError."""
    os.utime(path, dir_fd=dir_fd, follow_symlinks=False)


def changed(status: os.stat_result) -> float:
    """Returns when a file was last changed or touched, to be compared with `wall`; no user can set it."""
    return status.st_ctime


class Selector:
    """Waits for sockets that can be read; for one thread."""

    def __init__(self) -> None:
        import selectors

        self._selector, self._event = selectors.DefaultSelector(), selectors.EVENT_READ

    def register(self, peer: Socket, data: object) -> None:
        """Adds a socket, with what `select` returns for it."""
        self._selector.register(peer, self._event, data)

    def unregister(self, peer: Socket) -> None:
        """Removes a socket."""
        self._selector.unregister(peer)

    def select(self, timeout: float | None = None) -> list[Any]:
        """Returns the data of the sockets that can be read, after waiting for one; empty after this many seconds."""
        return [key.data for key, _ in self._selector.select(timeout)]

    def close(self) -> None:
        """Ends it; the sockets stay open."""
        self._selector.close()


@contextmanager
def installed(world: object) -> Iterator[None]:
    """Puts a world's methods instead of the functions of these names, for all threads of this process."""
    others = {name: getattr(world, name) for name in dir(world) if name in globals() and not name.startswith("_")}
    before = {name: globals()[name] for name in others}
    globals().update(others)
    try:
        yield
    finally:
        globals().update(before)
