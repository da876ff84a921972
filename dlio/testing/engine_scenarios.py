"""Runs scenarios over one engine: `engine_scenarios.py SCENARIO,... ENGINE WORKERS ADDRESS FOLDER`.

The results are written to FOLDER/result.json. It is its own process: frameworks leave threads and sockets behind,
and MPI needs the same script on all ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dlio
from dlio import errors, executors
from dlio.dataset.schema import Sample
from dlio.executors import Pool, map_bounded
from dlio.pack.listing.base import Listing
from dlio.pack.sources.imagefolder import image_folder

ERRORS = [
    errors.UsageError("usage"),
    errors.SourceError("of 'α'\nand more"),
    errors.SchemaError("schema"),
    errors.CorruptRecordError("a/b", "differs", record=3, offset=17),
    errors.StorageError(28, "cannot write x: No space left on device"),
    errors.DigestError("digest"),
    errors.MissingPackageError("package"),
    KeyError("no error of ours"),
]


def outcome(error: BaseException) -> list[object]:
    """Returns all that has to survive a journey."""
    return [type(error).__name__, str(error), list(map(str, error.args)), getattr(error, "exit_code", None)]


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def raise_error(number: int) -> None:
    raise ERRORS[number]


def fail_on_three(number: int) -> int:
    if number == 3:
        raise errors.SourceError("three")
    return number


class Counted:
    """The numbers below `stop`; `count` of them have been taken."""

    def __init__(self, stop: int) -> None:
        self.stop, self.count = stop, 0

    def __iter__(self) -> Iterator[int]:
        while self.count < self.stop:
            self.count += 1
            yield self.count - 1


@dataclass(frozen=True)
class Wait:
    """A task that ends when a file exists; none waits a minute."""

    number: int
    file: Path | None

    def run(self) -> int:
        deadline = time.monotonic() + 60
        while self.file and not self.file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.number


def squares(pool: Pool, folder: Path) -> object:
    """Every task gives its result, once."""
    found = list(map_bounded(pool, square, range(60)))
    return {"squares": sorted(value for value, _ in found), "own": os.getpid() in {process for _, process in found}}


def travels(pool: Pool, folder: Path) -> object:
    """What a task raises arrives as it was raised."""
    arrived = []
    for number in range(len(ERRORS)):
        try:
            list(map_bounded(pool, raise_error, [number]))
        except Exception as error:
            arrived.append(outcome(error))
    return arrived


def stops(pool: Pool, folder: Path) -> object:
    """After an error no more tasks are taken, and what was out comes before it."""
    taken, results = Counted(1000), []
    try:
        for result in map_bounded(pool, fail_on_three, taken):
            results.append(result)  # noqa: PERF402  what came before the error is kept
    except errors.SourceError:
        return {"taken": taken.count, "results": results}
    return None


def bounded(pool: Pool, folder: Path) -> object:
    """Tasks are taken as they are needed."""
    taken, most, done = Counted(100), 0, 0
    for _ in map_bounded(pool, square, taken):
        done += 1
        most = max(most, taken.count - done)
    return {"most": most, "done": done, "workers": pool.workers}


def finishes(pool: Pool, folder: Path) -> object:
    """Results come as they finish: the first task ends when the caller has another's result."""
    released, order = folder / "released", []
    for number in map_bounded(pool, Wait.run, [Wait(0, released), *(Wait(n, None) for n in range(1, 9))]):
        order.append(number)
        if number:
            released.touch()
    return order


def _ancestor(process: int, above: int) -> int:
    for _ in range(above):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


@dataclass(frozen=True, slots=True)
class DeadlyFolder:
    """An image folder whose reader is killed at one sample, once, or the process `above` levels above it."""

    path: Path
    deadly: str
    above: int = 0
    name: str = "imagefolder"

    def listing(self) -> Listing:
        return image_folder(self.path).listing()

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        flag = self.path.with_name("killed")
        with image_folder(self.path).reader(listing) as read:

            def read_or_die(index: int) -> Sample:
                if listing.keys[index] == self.deadly and not flag.exists():
                    flag.touch()
                    os.kill(_ancestor(os.getpid(), self.above), signal.SIGKILL)
                    time.sleep(60)  # it ends with what was killed
                return read(index)

            yield read_or_die


def packs(pool: Pool, folder: Path) -> object:
    """A pack whose worker is killed is an error that names the shard, and the pool does not wait for it."""
    source = DeadlyFolder(folder / "photos", deadly="dog/0005.png")
    try:
        manifest = dlio.pack(source, folder / "out", num_shards=12, engine=pool)
    except errors.StorageError as error:
        return str(error)
    return manifest.num_samples


def main(scenarios: str, engine: str, workers: str, address: str, folder: str) -> None:
    """Runs scenarios in the process that has the pool; writes the result of each by its name."""
    with executors.open_engine(engine, int(workers) if workers else None, address or None) as pool:
        if pool is not None:
            results = {name: globals()[name](pool, Path(folder)) for name in scenarios.split(",")}
            Path(folder, "result.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
