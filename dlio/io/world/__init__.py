"""The seam between the engine of staging and the system: clock, threads, connections, files, identity and chance.

The engine, its protocol, its meetings and its clients reach the system through these functions only
(tests/test_import.py), so the same code runs in a simulator: in virtual time, with as many nodes in one process as
asked for, and every order of events drawn from a seed. There `installed` puts another `World` in the system's place.

Whatever waits, takes time, can fail, or differs between two runs goes through here. Paths are checked directly
(`Path.exists`, `Path.stat`): of a disk the simulator has what it does with what is written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from dlio.io.world.interface import Address, Condition, Event, Lock, Selector, Socket, Thread, World
from dlio.io.world.system import System

# As `socket` has them on Linux, without its import.
SHUT_RDWR, MSG_MORE, MSG_PEEK, MSG_WAITALL = 2, 0x8000, 2, 0x100

__all__ = ["Address", "Condition", "Event", "Lock", "Selector", "Semaphore", "Socket", "Thread", "World"]

P = ParamSpec("P")
R = TypeVar("R")

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


def semaphore(count: int) -> Semaphore:
    """Returns a semaphore that so many may hold at a time."""
    return Semaphore(count, condition())


def _present(method: Callable[Concatenate[World, P], R]) -> Callable[P, R]:
    """Returns a function that calls a method of the present world."""
    name = method.__name__

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        found: R = getattr(_world, name)(*args, **kwargs)
        return found

    return called


monotonic = _present(World.monotonic)
wall = _present(World.wall)
sleep = _present(World.sleep)
start = _present(World.start)
lock = _present(World.lock)
condition = _present(World.condition)
event = _present(World.event)
random_bytes = _present(World.random_bytes)
pid = _present(World.pid)
boot_id = _present(World.boot_id)
host = _present(World.host)
start_time = _present(World.start_time)
address = _present(World.address)
listen = _present(World.listen)
connect = _present(World.connect)
unix_socket = _present(World.unix_socket)
user_of = _present(World.user_of)
limit = _present(World.limit)
keep_alive = _present(World.keep_alive)
selector = _present(World.selector)
send_file = _present(World.send_file)
open = _present(World.open)  # noqa: A001
pread = _present(World.pread)
preadv = _present(World.preadv)
pwrite = _present(World.pwrite)
fsync = _present(World.fsync)
replace = _present(World.replace)
names = _present(World.names)
touch = _present(World.touch)
changed = _present(World.changed)
