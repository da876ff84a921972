"""Disks in virtual time: real files in a folder for each, whose calls take time, and fail by seed or fault.

What goes through `dlio.io.world` comes here. Code that stats paths directly sees the real folder at that instant.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from tools.simulate.chance import Chance
from tools.simulate.clock import Clock
from tools.simulate.durable import PAGE_BYTES, Durable
from tools.simulate.lagging import Lagging
from tools.simulate.scheduler import MS, US, S, Scheduler

READ, WRITE, SYNC, OPEN = "read", "write", "sync", "open"

#: What can go wrong with a disk: the calls that it concerns, and what happens.
FAULTS = {
    "full": ((WRITE,), "no space is left after AMOUNT bytes"),
    "quota": ((WRITE,), "the quota is used up after AMOUNT bytes"),
    "eio-read": ((READ,), "AMOUNT reads fail"),
    "eio-write": ((WRITE,), "AMOUNT writes fail"),
    "eio-sync": ((SYNC,), "AMOUNT syncs fail, and their pages count as clean"),
    "stale": ((READ, OPEN), "AMOUNT handles are stale"),
    "short": ((READ, WRITE), "AMOUNT reads and writes are done in part"),
    "flip": ((READ,), "one bit is wrong in each of AMOUNT reads"),
    "slow": ((READ, WRITE, SYNC), "every call takes AMOUNT times as long"),
    "hang": ((READ, WRITE, SYNC), "one call takes AMOUNT ms"),
    "lag": ((OPEN,), "what another node has replaced is seen AMOUNT ms later"),
}
_ERRNOS = {"eio-read": errno.EIO, "eio-write": errno.EIO, "eio-sync": errno.EIO, "stale": errno.ESTALE}
_SELDOM, _TAIL = 0.05, 20  # some calls take this much longer: the first request may be answered last
_ROOM = {"full": errno.ENOSPC, "quota": errno.EDQUOT}
_UNKNOWN = 0.1  # probability that a folder is not in the cache


@dataclass(frozen=True, slots=True)
class Speed:
    """What a disk can do.

    Attributes:
        read, write: bytes a second, shared by all who use it.
        latency: ns of a call; up to twice as much, and now and then much more.
    """

    read: int = 8_000_000_000
    write: int = 2_000_000_000
    latency: int = 50 * US


LOCAL = Speed()


class Disk:
    """A disk, or a shared file system; for the tasks of one scheduler.

    Args:
        scheduler: has the time.
        root: the folder, whose name it has in the trace.
        clock: by which it stamps times.
        speed: of it.
        keeps_track: whether it knows what is durable.

    Attributes:
        opens, flips: files that were opened, and reads of which a bit was wrong.
        counted: the bytes of a call whose bytes take time, if others are a part of what they stand for; 0 for all.
        busy_until: when the last call that a fault made longer returns, in ns; one that hangs outlasts the fault.
    """

    def __init__(
        self, scheduler: Scheduler, root: Path, clock: Clock, speed: Speed = LOCAL, *, keeps_track: bool = False
    ) -> None:
        self.root, self.name, self._scheduler, self.speed = root.resolve(), root.name, scheduler, speed
        self._clock = clock
        self.durable = Durable(root) if keeps_track else None
        self._chance = Chance(scheduler.seed, f"disk {self.name}")
        self._free_at = {READ: 0, WRITE: 0}
        self._room: tuple[int, int] | None = None  # bytes that are left, and the error after them
        self.opens = self.flips = self.counted = self.busy_until = 0
        self._taken: set[tuple[int, int]] = set()  # pages, by inode, that count already
        self._left: dict[str, int] = {}
        self._lagging = Lagging()

    def inject(self, kind: str, amount: int) -> None:
        """Begins a fault; see FAULTS."""
        self.note(kind, amount)
        if kind in _ROOM:
            self._room = amount, _ROOM[kind]
        else:
            self._left[kind] = amount

    def note(self, *fields: object) -> None:
        """Adds a line to the trace."""
        self._scheduler.note("disk", self.name, *fields)

    def heal(self) -> None:
        """Ends all faults."""
        self._left.clear()
        self._room = None
        self._lagging.clear()

    def lose_power(self) -> None:
        """Leaves on the disk what survives; no process of its node runs any more."""
        assert self.durable, "this disk does not keep track of what is durable"
        self.note("loses power")
        self.durable.lose_power(self._chance)
        self._taken.clear()

    def _happens(self, kind: str) -> bool:
        """Counts a call that a fault concerns; returns whether it happens to this one."""
        left = self._left.get(kind, 0)
        if left and self._chance.happens(0.5):
            self._left[kind] = left - 1
            return True
        return False

    def enter(self) -> None:
        """Opens a folder, which takes no time if the system knows it already, as mostly; raises OSError if it fails."""
        if self._left or self._chance.fraction() < _UNKNOWN:
            self.wait(OPEN)

    def wait(self, kind: str, count: int = 0) -> None:
        """Makes the present task wait as long as a call takes; raises OSError if that is to fail."""
        latency, fraction = self.speed.latency, self._chance.fraction
        took = latency + int(fraction() * (latency + 1))
        if fraction() < _SELDOM:
            took *= _TAIL
        if self.counted not in (0, count):
            count = 0
        if not (self._left or count):
            self._scheduler.pause(took)
            return
        took *= self._left.get("slow", 1)
        if count:
            rate, line = (self.speed.write, WRITE) if kind == WRITE else (self.speed.read, READ)
            begins = max(self._free_at[line], self._scheduler.now)
            self._free_at[line] = begins + count * S // rate * self._left.get("slow", 1)
            took += self._free_at[line] - self._scheduler.now
        if kind in FAULTS["hang"][0] and (ms := self._left.pop("hang", 0)):
            took += ms * MS
        self.busy_until = max(self.busy_until, self._scheduler.now + took)
        self._scheduler.pause(took)
        for name, number in _ERRNOS.items():
            if kind in FAULTS[name][0] and self._happens(name):
                self.note(name)
                raise OSError(number, os.strerror(number))

    def replaces(self, path: str) -> None:
        """Notes that the present task gives a name to another file next."""
        if "lag" in self._left and (task := self._scheduler.current):
            self._lagging.replaces(path, task.process.node, self._scheduler.now)

    @property
    def lags(self) -> bool:
        """Whether nodes may see what was there before."""
        return "lag" in self._left

    def opened(self, path: str) -> int | None:
        """Returns a descriptor of the file that the present task sees at a path, if that is not the one there.

        Raises:
            FileNotFoundError: it does not see any yet.
        """
        lag, task = self._left.get("lag"), self._scheduler.current
        return self._lagging.opened(path, task.process.node, self._scheduler.now - lag * MS) if lag and task else None

    def listed(self, path: str, names: list[str]) -> list[str]:
        """Returns those of a folder's names that the present task sees; raises OSError if it is stale."""
        if "stale" in self._left:
            self.wait(OPEN)
        lag, task = self._left.get("lag"), self._scheduler.current
        if not (lag and task):
            return names
        node, since = task.process.node, self._scheduler.now - lag * MS
        return [name for name in names if not self._lagging.is_hidden(f"{path}/{name}", node, since)]

    def take_room(self, descriptor: int, offset: int, count: int) -> None:
        """Uses space for a write; raises OSError if none is left."""
        if self._room is None:
            return
        inode = os.fstat(descriptor).st_ino
        pages = {
            (inode, page) for page in range(offset // PAGE_BYTES, -(-(offset + count) // PAGE_BYTES))
        } - self._taken
        left, number = self._room
        if len(pages) * PAGE_BYTES > left:
            raise OSError(number, os.strerror(number))
        self._taken |= pages
        self._room = left - len(pages) * PAGE_BYTES, number

    def part(self, count: int) -> int:
        """Returns how many of the bytes of a call are read or written: at least a page, or all if they are fewer."""
        if count > PAGE_BYTES and self._happens("short"):
            return self._chance.between(PAGE_BYTES, count)
        return count

    def early(self, count: int) -> int:
        """Returns how many of the bytes of a write others may see before it returns."""
        return (0, count, self._chance.below(count + 1))[self._chance.below(3)]

    def spoil(self, data: memoryview) -> None:
        """Turns a bit of what was read, if the fault is on."""
        if len(data) and self._happens("flip"):
            at = self._chance.below(len(data))
            data[at] ^= 1 << self._chance.below(8)
            self.note("flip", at)
            self.flips += 1

    def times(self) -> tuple[int, int]:
        """Returns what it stamps on a file that is changed now, in ns since 1970: when it was read and written."""
        now = self._clock.wall_ns()
        return now, now
