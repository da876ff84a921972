"""The processes of a job that list a folder for each other, as `dlio stage` lists one that is no data set."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dlio.cluster.topology import Topology
from dlio.io import files, world
from dlio.io.open_folder import OpenFolder
from dlio.stage.meeting.listing import by_processes
from tools.simulate.cluster import Actor, Cluster
from tools.simulate.data_set import drawn
from tools.simulate.oracle import Oracle
from tools.simulate.people import pause


class Lists:
    """The lists of a folder that the processes of a schedule make and get.

    Args:
        oracle: notes broken promises.
        num_bytes: that make a list longer; of many, one message does not hold it.
    """

    def __init__(self, oracle: Oracle, num_bytes: int) -> None:
        self._oracle, self._more = oracle, drawn(0, num_bytes).hex()
        self._began: list[int] = []  # ns, by the numbers of lists
        self._made: dict[bytes, int] = {}  # the numbers of those that are whole

    def make(self, cluster: Cluster, think: Callable[[], float]) -> bytes:
        """Returns a list of the source, which no other one equals; raises StorageError."""
        number, root = len(self._began), cluster.data.manifest.root
        self._began.append(cluster.scheduler.now)
        world.sleep(think())
        with files.storage_errors("list", root), OpenFolder.at(root) as folder:
            for name in (names := folder.names()):
                descriptor = world.open(name, os.O_RDONLY, dir_fd=folder.descriptor)
                try:
                    world.pread(descriptor, 1, 0)  # takes as long as a stat, and fails as one
                finally:
                    os.close(descriptor)
        found = json.dumps([number, names, self._more]).encode()
        self._made[found] = number
        return found

    def check(self, who: object, asked: int, found: bytes) -> None:
        """Checks what a process got that asked at a time, in ns."""
        number = self._made.get(found)
        if number is None:
            self._oracle.broken("whole-list", f"{who} got {found[:40]!r} of {len(found)} bytes")
        elif self._began[number] < asked:
            self._oracle.broken("whole-list", f"{who} got a list that was begun before it asked")

    def check_once(self) -> None:
        """Checks that the folder was listed once if there was no fault, and all came at the same time."""
        if self._oracle.causes.is_calm and len(self._began) != 1:
            self._oracle.broken("listed-once", f"{len(self._began)} lists")


@dataclass(frozen=True, slots=True)
class Listing:
    """A process that needs the list of the source, and stays for a while.

    Attributes:
        lists: of all processes.
        think: returns the seconds that it takes to list, and those that it stays.
    """

    lists: Lists
    think: Callable[[], float]

    def __call__(self, actor: Actor) -> None:
        """Gets the list from another process, or makes it."""
        cluster, asked = actor.cluster, actor.cluster.scheduler.now
        with by_processes(Topology.from_env(), by_folder=True) as list_once:
            make = partial(self.lists.make, cluster, self.think)
            self.lists.check(actor, asked, list_once(cluster.data.manifest.root, make))
            pause(cluster, self.think())
