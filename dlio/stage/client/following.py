"""Waiting for the process that fills a copy: an agent, or another process's `dlio stage`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.io import world
from dlio.stage.client.client import Client
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.job import Listeners

STUCK_SECONDS = 20.0  # without a byte: then the process that waits gets an error
_LOOK_SECONDS = 0.2


class Following:
    """Looks now and then how far another process is, and reports it; for one thread.

    Args:
        folder: the copy.
        wanted: the files that the copy holds when it is complete.
        listeners: `expect` and `report` are called.
    """

    def __init__(self, folder: StagedFolder, wanted: Sequence[File], listeners: Listeners) -> None:
        self._folder, self._wanted, self._listeners = folder, wanted, listeners
        self._client: Client | None = None
        self._looked = 0.0
        self._done, self._since = -1, world.monotonic()

    def is_done(self) -> bool:
        """Returns whether the copy is complete, after reporting how far it is.

        Raises:
            StorageError: the process that fills it does not get on, or does not keep all of it; says why.
        """
        if self._folder.holds(self._wanted):
            return True
        if world.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = world.monotonic()
            self._look()
        return False

    def close(self) -> None:
        """Closes the connection."""
        if self._client:
            self._client.close()

    def _look(self) -> None:
        if self._client is None:
            if LiveFolder(self._folder).agent() is None:
                return
            self._client = Client(self._folder)
        try:
            found = self._client.stat()
        except StorageError:  # it has ended, or will answer later
            self.close()
            self._client = None
            return
        self._note(found["nodes"][0])
        self._check(found, world.monotonic() - self._since)

    def _note(self, node: dict[str, Any]) -> None:
        """Reports what has come since the last look."""
        if node["staged_bytes"] == self._done:
            return
        if self._done < 0 and self._listeners.expect:
            self._listeners.expect(node["total_bytes"] - node["staged_bytes"])
        elif 0 <= self._done < node["staged_bytes"] and self._listeners.report:
            self._listeners.report(node["staged_bytes"] - self._done)
        self._done, self._since = node["staged_bytes"], world.monotonic()

    def _check(self, found: dict[str, Any], idle: float) -> None:
        node = found["nodes"][0]
        if not found["keeps_all"]:
            kept = f"{self._folder.path} is a cache of {node['total_bytes']:,} bytes, less than the data set"
            raise StorageError(f"{kept}: read it while its agent runs, or free room and end it by dlio clean")
        if idle > STUCK_SECONDS and (node["waiting_for"] or not node["is_complete"]):
            why = node["waiting_for"] or "nothing has come"
            log = LiveFolder(self._folder).log
            raise StorageError(f"{node['host']} has staged nothing for {idle:.0f} s: {why}; see {log}")
