"""The oracle of the simulator notices what must not be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dlio.dataset.manifest import NAME
from dlio.stage.copies.base_folder import CACHE, CONTROL, LEASES
from tools.simulate.clock import Clock
from tools.simulate.data_set import DataSet
from tools.simulate.oracle import MOST_BUFFERS, PATIENCE, Oracle, most_reads
from tools.simulate.scheduler import S, Scheduler
from tools.simulate.source import Source
from tools.simulate.storage import Storage


class Scene:
    """A source, and a node with a copy."""

    def __init__(self, base: Path) -> None:
        self.scheduler = Scheduler(0)
        self.storage = Storage(self.scheduler, base)
        shared = self.storage.add("source", Clock(self.scheduler))
        self.disk = self.storage.add("node0", Clock(self.scheduler))
        self.data = DataSet(shared.root, [50_000, 60_000])
        self.source = Source(self.data, shared)
        self.oracle = Oracle(self.scheduler, self.data.contents, self.source)
        self.storage.read[shared] = self.source.note_read
        self.storage.named.append(self.oracle.named)
        self.copy = self.disk.root / CACHE / "copy"
        (self.copy / CONTROL).mkdir(parents=True)
        (self.copy.parent / LEASES).mkdir()
        (self.copy.parent / LEASES / "copy@1").touch()

    def do(self, call: Callable[[], object]) -> None:
        """Runs a call as a task."""
        task = self.scheduler.spawn(self.scheduler.process(0, 100, "boot", "node0", 0), call, "task")
        self.scheduler.run()
        if task.error:
            raise task.error

    def name(self, name: str, data: bytes) -> None:
        """Gives a file its final name."""
        (self.copy / CONTROL / name).write_bytes(data)
        self.do(lambda: self.storage.replace(self.copy / CONTROL / name, self.copy / name))

    @property
    def broken(self) -> list[str]:
        return [violation.promise for violation in self.oracle.violations]


@pytest.fixture(name="scene")
def _scene(tmp_path):
    return Scene(tmp_path)


def whole(scene: Scene) -> None:
    for name, data in scene.data.contents.items():
        scene.name(name, data)
    (scene.copy / NAME).touch()
    scene.oracle.published(scene.copy, frozenset(scene.data.contents))


def test_right_bytes_are_fine_and_wrong_ones_are_not(scene):
    name, data = next(iter(scene.data.contents.items()))
    assert scene.oracle.delivered("loader", name, 100, 200, data[100:200])
    assert not scene.broken
    assert not scene.oracle.delivered("loader", name, 101, 201, data[100:200])
    assert scene.broken == ["right-bytes"]
    assert str(scene.oracle.violations[0]).startswith("right-bytes at 0.000000 s: no byte is delivered that is not")


def test_a_wrong_file_is_noticed_when_it_gets_its_name(scene):
    whole(scene)
    assert not scene.broken
    scene.name(next(iter(scene.data.contents)), b"wrong")
    assert scene.broken == ["proved-name"]


def test_a_copy_that_lacks_a_file_is_noticed(scene):
    whole(scene)
    scene.oracle.check_copies(scene.disk)
    assert not scene.broken
    (scene.copy / next(iter(scene.data.contents))).unlink()
    scene.oracle.check_copies(scene.disk)
    assert scene.broken == ["whole-copy", "kept-copy"]
    scene.oracle.removed(scene.copy)
    (scene.copy / NAME).unlink()
    scene.oracle.check_copies(scene.disk)
    assert len(scene.broken) == 2


def test_a_finished_copy_without_a_lease_is_noticed(scene):
    (scene.copy.parent / LEASES / "copy@1").unlink()
    whole(scene)
    assert scene.broken == ["leased-copy"]


def test_reads_of_the_source_are_counted_by_blocks(scene):
    def read() -> None:
        descriptor = scene.storage.open(scene.data.manifest.root / next(iter(scene.data.contents)), os.O_RDONLY)
        scene.storage.pread(descriptor, 40_000, 0)
        os.close(descriptor)

    scene.do(read)
    scene.oracle.check_reads((), 5)
    assert not scene.broken
    assert scene.source.bytes_read == 40_000
    scene.do(read)
    scene.oracle.check_reads(["kill"], 5)
    assert not scene.broken
    scene.oracle.check_reads((), 5)
    assert scene.broken == ["read-once"]


def test_what_cuts_nodes_off_lets_each_read_once():
    assert most_reads((), 5) == 1
    assert most_reads(["kill", "isolate"], 5) == 7


def test_waiting_for_long_and_for_ever_are_noticed(scene):
    def wait() -> None:
        with scene.oracle.patience("loader"):
            scene.scheduler.pause(PATIENCE + S)

    scene.do(wait)
    assert scene.broken == ["patience"]
    scene.oracle.end([], 0)
    scene.oracle.end(["loader 0"], 0)
    assert scene.broken == ["patience", "end"]


def test_errors_without_a_fault_are_noticed(scene):
    scene.oracle.failed("loader: no", ["kill"])
    assert not scene.broken
    scene.oracle.failed("loader: no", [])
    assert scene.broken == ["no-error"]


def test_a_thread_that_ends_by_an_exception_is_noticed(scene):
    with pytest.raises(ZeroDivisionError):
        scene.do(lambda: 1 // 0)
    scene.oracle.check_crashes(lambda error: isinstance(error, ZeroDivisionError))
    assert not scene.broken
    scene.oracle.check_crashes(lambda error: False)
    assert scene.broken == ["no-crash"]


def test_memory_is_counted(scene):
    from dlio.stage.engine.writing import Buffers

    def take(count: int) -> None:
        buffers = Buffers()
        taken = [buffers.take() for _ in range(count)]
        for each in taken:
            buffers.give_back(each)

    with scene.oracle.counting_memory():
        scene.do(lambda: take(MOST_BUFFERS))
        assert not scene.broken
        scene.do(lambda: take(MOST_BUFFERS + 1))
    assert scene.broken == ["memory"]


def test_a_changed_source_has_its_bytes_again_when_it_is_healed(scene):
    path = scene.data.manifest.root / next(iter(scene.data.contents))
    before = path.read_bytes(), path.stat().st_mtime_ns
    for kind in ("changed", "gone"):
        scene.source.spoil(kind, 0)
        assert not path.exists() or path.read_bytes() != before[0]
        scene.source.mend()
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
