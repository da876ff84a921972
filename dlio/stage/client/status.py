"""How far staging is, and waiting for the process that fills a copy: an agent, or another process's `dlio stage`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlio.cluster.liveness import Heartbeats
from dlio.dataset.manifest import NAME, File
from dlio.errors import StorageError, UsageError
from dlio.io import world
from dlio.io.sizes import format_size
from dlio.stage.client.client import Client, connect
from dlio.stage.copies.at_rest import named_origin
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import known_folders
from dlio.stage.copies.ownership import own_dest, safe_copies
from dlio.stage.job import Listeners
from dlio.stage.meeting.peer import shown as shown_record
from dlio.urls import is_url, shown

# Without a new byte, and once all are here: then a process that waits gets an error.
STUCK_SECONDS, _PUBLISHING_SECONDS = 20.0, 600.0
_LOOK_SECONDS = 0.2


def status(content_id: str, dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns the state of each of this user's copies of a data set on this node that is complete or being filled.

    By default it checks all folders of this node that may hold copies.

    Returns:
        For each copy its `path`, whether it `is_complete`, and if an agent runs, what `Client.stat` gives: the bytes
        read from the source, received from and sent to other nodes, and for each node in `nodes` its bytes, rate, time
        left, and what it waits for.
    """
    return [found for folder in copies(content_id, dest) if (found := state(folder))]


def status_from(source: str, dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns `status` of the copies that were staged from a folder or a URL, which need not be readable now."""
    name = shown(source) if is_url(source) else os.path.abspath(source)  # noqa: PTH100
    staged = name.removesuffix(f"/{NAME}")
    return [found for folder in copies("", dest) if _is_from(folder, staged) and (found := state(folder))]


def _is_from(folder: StagedFolder, source: str) -> bool:
    try:
        return named_origin(folder) == source
    except UsageError:
        return False


def copies(content_id: str, dest: str | os.PathLike[str] | None) -> Iterator[StagedFolder]:
    """Returns the copies of a data set of which `status` tells."""
    named = known_folders() if dest is None else [Path(dest).absolute()]
    return safe_copies(content_id, (each for one in named for each in (one, own_dest(one))))


def state(folder: StagedFolder) -> dict[str, Any] | None:
    """Returns the state of a copy, None if it is neither complete nor being filled."""
    head = {"path": str(folder.path), "is_complete": folder.has_manifest()}
    client = connect(folder) if LiveFolder(folder).agent() else None
    if client is None:  # it may have completed the copy just now
        return head | {"is_complete": True} if folder.has_manifest() else None
    try:
        found = client.stat()
    except StorageError:  # it ended just now
        return head | {"is_complete": True} if folder.has_manifest() else None
    finally:
        client.close()
    return head | found | {"nodes": [shown_record(node) for node in found["nodes"]]}


def in_one_word(copy: Mapping[str, Any]) -> str:
    """Returns whether a copy is complete, as `status` gives it; a cache that is smaller than the data set never is."""
    if copy["is_complete"]:
        return "complete"
    if copy.get("keeps_all", True):
        return "being filled"
    is_full = copy["nodes"][0]["is_complete"]
    return f"a cache that is smaller than the data set, {'full' if is_full else 'being filled'}"


def in_words(node: Mapping[str, Any]) -> str:
    """Returns how far one node is, as `status` gives it in `nodes`."""
    done, total = format_size(node["staged_bytes"]), format_size(node["total_bytes"])
    left = "" if node["is_complete"] or node["seconds_left"] is None else f", {node['seconds_left']:.0f} s left"
    waiting = f", waits: {node['waiting_for']}" if node["waiting_for"] else ""
    return f"{done} of {total}, {format_size(node['bytes_per_second'])}/s{left}{waiting}"


class Following:
    """Looks now and then how far another process is with the files that a copy is to hold; for one thread."""

    def __init__(self, folder: StagedFolder, wanted: Sequence[File], listeners: Listeners) -> None:
        self._folder, self._wanted, self._listeners = folder, wanted, listeners
        self._client = Client(folder)
        self._looked, self._done = 0.0, -1
        self._heartbeats = Heartbeats()

    def is_done(self) -> bool:
        """Returns whether the copy is complete, after reporting how far it is.

        Raises StorageError if the process that fills it does not get on, or does not keep all of it: says why.
        """
        if self._folder.holds(self._wanted):
            return True
        if world.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = world.monotonic()
            self._look()
        return False

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _look(self) -> None:
        try:
            found = self._client.stat()
        except StorageError:  # it has ended, or will answer later
            LiveFolder(self._folder).agent()  # raises the error if it is of another version
            return
        staged, total = (found["nodes"][0][name] for name in ("staged_bytes", "total_bytes"))
        if self._done < 0 and self._listeners.expect:
            self._listeners.expect(total - staged)
        elif 0 <= self._done < staged and self._listeners.report:
            self._listeners.report(staged - self._done)
        self._done = staged
        self._check(found, self._heartbeats.note(self._folder, staged))

    def _check(self, found: dict[str, Any], idle: float) -> None:
        node = found["nodes"][0]
        if not found["keeps_all"]:
            kept = f"{self._folder.path} is a cache of {node['total_bytes']:,} bytes, less than the data set"
            raise StorageError(f"{kept}: read it while its agent runs, or free space and end it with dlio clean")
        is_publishing = node["staged_bytes"] == node["total_bytes"] and not node["waiting_for"]
        if idle > (_PUBLISHING_SECONDS if is_publishing else STUCK_SECONDS):
            why = node["waiting_for"] or "nothing has come"
            log = LiveFolder(self._folder).log
            raise StorageError(f"{node['host']} has staged nothing for {idle:.0f} s: {why}; see {log}")
