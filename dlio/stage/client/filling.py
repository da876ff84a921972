"""A copy that an agent is filling, as the loaders of its node see it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar

from dlio.cached import cached_property
from dlio.dataset import remote
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.dataset.sample_table import SUFFIX
from dlio.dataset.shard import files_of
from dlio.errors import DlioError, LauncherError, StorageError
from dlio.io import waits, world
from dlio.io.arrivals import Arrival, NoRoomError
from dlio.io.files import Span
from dlio.locking.fork_lock import ForkLock
from dlio.stage.client.arriving import PassedFile, Wanted, open_arriving
from dlio.stage.client.client import Client
from dlio.stage.client.start import Task, ensure_agent, task_of_job
from dlio.stage.client.status import answer, in_words
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.planning.plan import has_parts
from dlio.stage.protocol.wire import Origin
from dlio.stage.sources import StagingSource, source_of
from dlio.stage.strategies import load

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FULL_SECONDS = 60.0  # before an agent is started again for which there was no room
_ATTEMPTS = 3  # to open a file that is given its name just now


def find_filling(folder: StagedFolder, dataset: str | PathLike[str]) -> LiveFilling | None:
    """Returns the filling of a copy of a data set, None if no agent fills or serves it.

    An agent that was killed is started again if it is this job's: without it, this rank would read what is here alone,
    while the ranks of other nodes read everything.

    Raises:
        DlioError: the manifest of the copy cannot be read, or the agent of a part cannot be started again.
    """
    live = LiveFolder(folder)
    manifest = live.manifest() if live.agent() is not None or _revived(live) else None
    if manifest is None:
        return None
    return LiveFilling(folder, manifest, _restart(live, manifest, dataset), dataset)


def _revived(live: LiveFolder) -> bool:
    """Returns whether the agent that this job has had here could be started again."""
    task = task_of_job(live)
    if task is None:
        return False
    try:
        return task.start_again() == live.staged and live.agent() is not None
    except LauncherError:
        return False
    except NoRoomError:
        raise
    except DlioError as error:
        if load(task.strategy).NEEDS.parts:  # no other place holds this node's part of the order
            raise
        _log.warning("the data set is read in place: its agent cannot be started again: %s", error)
        return False


def _restart(live: LiveFolder, manifest: Manifest, dataset: str | PathLike[str]) -> Callable[[], object]:
    """Returns what starts the agent again, asked for the same as the last one."""
    if task := Task.of(live):
        return task.start_again
    strategy = "partition" if has_parts(manifest) else "replicate"
    return partial(ensure_agent, dataset, live.staged.dest, strategy=strategy)


def cached(dataset: str | PathLike[str], cache: str | PathLike[str] | bool) -> tuple[Manifest, LiveFilling | None]:
    """Returns the manifest of a data set that is read through a cache, and who fills that; None if it is whole.

    The cache is the node-local folder for the copy; True chooses one. If its disk is too full for an agent, the data
    set is read in place. Raises as `dlio.stage`.
    """
    try:
        folder = ensure_agent(dataset, None if cache is True else Path(cache))  # type: ignore[arg-type]
        filling = None if _is_whole(folder) else find_filling(folder, dataset)
    except NoRoomError as error:
        _log.warning("%s", error.text)
        return remote.load(dataset), None
    if filling is None and not folder.has_manifest():
        log, host = LiveFolder(folder).log, world.host()
        raise StorageError(f"the agent on {host} ended before {folder.path} was complete: see {log}, then start again")
    return (Manifest.load(folder.path), None) if filling is None else (filling.manifest, filling)


def _is_whole(folder: StagedFolder) -> bool:
    """Returns whether all of a data set is here: then an agent, if there is one, serves other nodes."""
    staged = Manifest.load(folder.path) if folder.is_published() else None
    return staged is not None and not has_parts(staged) and folder.holds(files_of(staged.shards))


class LiveFilling:
    """A `Filling` that asks the agent for missing files. Picklable; safe for several threads and across fork.

    Attributes:
        manifest: of the whole data set, all of which can be read through the agent.
    """

    def __init__(
        self,
        folder: StagedFolder,
        manifest: Manifest,
        restart: Callable[[], object] | None,
        dataset: str | PathLike[str],
    ) -> None:
        """Connects when something is missing.

        Args:
            folder, manifest: of the copy.
            restart: starts its agent again; picklable.
            dataset: the source, which is read while the disk has no room for an agent.
        """
        self.manifest = replace(manifest, root=folder.path, shards=tuple(s.replace(nodes=()) for s in manifest.shards))
        self._given = folder, manifest, restart, dataset
        self._full_until = 0.0
        self._live = LiveFolder(folder)
        self._client = Client(folder, restart)
        self._lock = ForkLock()
        self._counts: dict[str, float] = {}

    def __reduce__(self) -> tuple[type[LiveFilling], tuple[object, ...]]:
        return LiveFilling, self._given

    @cached_property
    def _files(self) -> dict[str, tuple[int, File]]:
        """The files of the data set by name, each with its number."""
        files = files_of(self.manifest.shards)
        return {file.name: (number, file) for number, file in enumerate(files)}

    def prepare(self, names: Sequence[str]) -> Collection[str]:
        """Waits for the small ones of a shard's files, and its table; returns the names of those still arriving.

        Raises NoRoomError while the disk has no room for an agent, StorageError if it has ended and cannot be started
        again, or nobody has the files.
        """
        # The table of tiny samples may be larger than these, and is read whole.
        largest = max(names, key=lambda name: (not name.endswith(SUFFIX), self._files[name][1].num_bytes))
        self.complete([name for name in names if name != largest])
        return () if self._path(largest).exists() else (largest,)

    def complete(self, names: Sequence[str]) -> None:
        """Waits until files are whole, under their final names; raises as `prepare`."""
        for name in names:
            number, file = self._files[name]
            if self._path(name).exists() or self._need(number, file, ()):
                continue
            if world.monotonic() < self._full_until:
                raise NoRoomError(f"{name} cannot be brought to this node, whose disk has no room for an agent")
            raise StorageError(
                f"{name} is not kept on this node, and can only be read whole: give a larger cache, or "
                "stage the whole data set to each node"
            )

    def arrival(self, path: Path) -> Arrival | None:
        """Returns a file that is arriving, None if the data set has no such file; raises as `prepare`."""
        try:
            number, file = self._files[str(path.relative_to(self.manifest.root))]
        except (ValueError, KeyError):
            return None
        wanted = self._wanted(number, file)
        unfinished, bits = self._live.unfinished(file), self._live.blocks(file)
        for _ in range(_ATTEMPTS):
            if not path.exists() and not wanted.need([(0, 0)]):  # before this answer the file may be half made
                return PassedFile(file.num_bytes, wanted)
            if found := open_arriving(unfinished, bits, path, file.num_bytes, wanted):
                return found
        raise StorageError(
            f"the agent of {self.manifest.root} reports that {file.name} is complete, but it is not: stage again"
        )

    def expect(self, shards: Sequence[int]) -> None:
        """Sends the order in which this process will first use the shards; does not raise."""
        with suppress(StorageError, OSError):
            if not self._path(NAME).exists():  # else nothing is left to bring
                self._client.order(shards)

    def counts(self) -> Mapping[str, float]:
        """Returns what this process has waited for so far: bytes and seconds of `peer` and `source`."""
        with self._lock:
            return dict(self._counts)

    def progress(self) -> str:
        """Returns how far this node's copy is, as text; "" if what it keeps is complete, or no agent answers."""
        found = answer(self._given[0])
        return "" if found is None or found["nodes"][0]["is_complete"] else in_words(found["nodes"][0])

    def _path(self, name: str) -> Path:
        return self.manifest.root / name

    def _wanted(self, number: int, file: File) -> Wanted:
        def read(ranges: Sequence[Span], memory: memoryview) -> None:
            began = world.monotonic()
            origin = self._asked(lambda: self._client.read(number, ranges, memory))
            self._count(self._read(file, ranges, memory) if origin is None else origin, len(memory), began)

        def need(ranges: Sequence[Span]) -> bool:
            return self._need(number, file, ranges)

        return Wanted(need, read, lambda ranges: self._asked(lambda: self._client.bad(number, ranges)))

    def _need(self, number: int, file: File, ranges: Sequence[Span]) -> bool:
        began = world.monotonic()
        try:
            origin = self._asked(lambda: self._client.need(number, ranges))
        except StorageError:  # the process that filled the copy has completed it, and ended
            if self._path(file.name).exists():
                return True
            raise
        if origin is not None:
            num_bytes = sum(end - begin for begin, end in ranges) if ranges else file.num_bytes
            self._count(origin, num_bytes, began)
        return origin is not None

    def _asked(self, ask: Callable[[], T | None]) -> T | None:
        """Returns what the agent answers; None while the disk has no room for one, which is logged once."""
        with self._lock:
            if world.monotonic() < self._full_until:
                return None
            if was_full := self._full_until > 0:  # one thread looks for room, and the others read on
                self._full_until = world.monotonic() + _FULL_SECONDS
        try:
            answer = ask()
        except NoRoomError as error:
            if not self._full_until:
                _log.warning("%s", error.text)
            self._full_until = world.monotonic() + _FULL_SECONDS
            return None
        if was_full:
            self._full_until = 0.0
        return answer

    def source(self) -> Manifest:
        """Returns the manifest of the data set where it is filled from."""
        return self._in_place

    @cached_property
    def _in_place(self) -> Manifest:
        return remote.load(self._given[3])

    def _read(self, file: File, ranges: Sequence[Span], memory: memoryview) -> Origin:
        """Fills `memory` with ranges of a file from the source; raises StorageError."""
        for begin, end in ranges:
            self._source.read_range(file, begin, memory[: end - begin])
            memory = memory[end - begin :]
        return Origin.SOURCE

    @cached_property
    def _source(self) -> StagingSource:
        return source_of(self._given[3])

    def _count(self, origin: int, num_bytes: int, began: float) -> None:
        """Adds to the counts of waiting; bytes found on the disk after all count as read from there."""
        if origin == Origin.DISK:
            return
        name, seconds = Origin(origin).name.lower(), world.monotonic() - began
        waits.note(seconds)  # as of slow storage: loaders read ahead
        with self._lock:
            for key, amount in ((f"{name}_bytes", num_bytes), (f"{name}_seconds", seconds)):
                self._counts[key] = self._counts.get(key, 0) + amount
