"""The seam between the engine of staging and the system: clock, threads, connections, files, identity and chance.

The engine, its protocol, its meetings and its clients reach the system through these functions only
(tests/test_import.py), so the same code runs in a simulator: in virtual time, with as many nodes in one process as
asked for, and every order of events drawn from a seed. There `installed` puts another `World` in the system's place.

Whatever waits, takes time, can fail, or differs between two runs goes through here. Paths are checked directly
(`Path.exists`, `Path.stat`): of a disk the simulator has what it does with what is written to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dlio.io.world.interface import Address, Condition, Event, Lock, Selector, Socket, Thread, World
from dlio.io.world.system import System

# As `socket` has them on Linux, without its import.
SHUT_RDWR, MSG_MORE, MSG_PEEK, MSG_WAITALL = 2, 0x8000, 2, 0x100

__all__ = ["Address", "Condition", "Event", "Lock", "Selector", "Semaphore", "Socket", "Thread", "World"]

_world: World = System()


class Semaphore:
    """As `threading.Semaphore`, in a `with` statement."""

    def __init__(self, count: int, changed: Condition) -> None:
        self._free, self._changed = count, changed

    def __enter__(self) -> None:
        with self._changed:
            while not self._free:
                self._changed.wait()
            self._free -= 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Uses a world instead of the current one, for all threads of this process, until the block ends."""
    global _world
    before, _world = _world, world
    try:
        yield
    finally:
        _world = before


def monotonic() -> float:
    """Returns the monotonic clock, in seconds."""
    return _world.monotonic()


def wall() -> float:
    """Returns the time of day, in seconds since 1970."""
    return _world.wall()


def sleep(seconds: float) -> None:
    """Sleeps for this many seconds."""
    _world.sleep(seconds)


def start(call: Callable[[], object], name: str) -> Thread:
    """Returns a new daemon thread that makes a call.

    Raises:
        MissingError: the system allows no more threads; names the limit.
    """
    return _world.start(call, name)


def lock() -> Lock:
    """Returns a lock."""
    return _world.lock()


def condition() -> Condition:
    """Returns a condition with its own lock."""
    return _world.condition()


def semaphore(count: int) -> Semaphore:
    """Returns a semaphore that so many may hold at a time."""
    return Semaphore(count, condition())


def event() -> Event:
    """Returns an event that is not set."""
    return _world.event()


def random_bytes(count: int) -> bytes:
    """Returns random bytes that nobody can guess."""
    return _world.random_bytes(count)


def pid() -> int:
    """Returns this process's id."""
    return _world.pid()


def boot_id() -> str:
    """Returns what is the same for all processes of this boot of this machine; raises LauncherError."""
    return _world.boot_id()


def host() -> str:
    """Returns the name of this machine."""
    return _world.host()


def start_time(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None if it has ended, exits, or is a zombie."""
    return _world.start_time(pid)


def address() -> str:
    """Returns the address of this node that other nodes reach; raises UsageError if DLIO_INTERFACE names none."""
    return _world.address()


def listen(host: str, backlog: int) -> Socket:
    """Returns a TCP socket that listens at any port of an address; raises OSError."""
    return _world.listen(host, backlog)


def connect(address: Address, seconds: float) -> Socket:
    """Returns a TCP connection, whose calls time out after this many seconds; raises OSError."""
    return _world.connect(address, seconds)


def unix_socket() -> Socket:
    """Returns a Unix stream socket, not bound, that only this user may connect to once it is; raises OSError."""
    return _world.unix_socket()


def user_of(peer: Socket) -> int:
    """Returns the user id of the process at the other end of a Unix connection; raises OSError."""
    return _world.user_of(peer)


def limit(peer: Socket, seconds: float) -> None:
    """Ends each call on a connection after this many seconds, with BlockingIOError; see `System.limit`."""
    _world.limit(peer, seconds)


def keep_alive(peer: Socket) -> None:
    """Sends small frames of a TCP connection at once, and notices one whose other end has ended."""
    _world.keep_alive(peer)


def selector() -> Selector:
    """Returns an empty selector."""
    return _world.selector()


def send_file(peer: Socket, descriptor: int, begin: int, count: int) -> int:
    """Sends a range of a file that never enters this process's memory; returns how much; raises OSError."""
    return _world.send_file(peer, descriptor, begin, count)


def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:  # noqa: A001
    """As `os.open`."""
    return _world.open(path, flags, mode, dir_fd=dir_fd)


def pread(descriptor: int, count: int, offset: int) -> bytes:
    """As `os.pread`."""
    return _world.pread(descriptor, count, offset)


def preadv(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
    """As `os.preadv`."""
    return _world.preadv(descriptor, buffers, offset)


def pwrite(descriptor: int, data: Any, offset: int) -> int:
    """As `os.pwrite`."""
    return _world.pwrite(descriptor, data, offset)


def fsync(descriptor: int) -> None:
    """As `os.fsync`."""
    _world.fsync(descriptor)


def replace(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    """As `os.replace`."""
    _world.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


def names(folder: int) -> list[str]:
    """As `os.listdir`, of a descriptor."""
    return _world.names(folder)


def touch(path: Any, *, dir_fd: int | None = None) -> None:
    """Sets a file's time to the present time of its file system, as a write does; follows no link; raises OSError."""
    _world.touch(path, dir_fd=dir_fd)


def changed(status: os.stat_result) -> float:
    """Returns when a file was last changed or touched, to be compared with `wall`; no user can set it."""
    return _world.changed(status)
