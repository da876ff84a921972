"""The simulator's disks: virtual time, and what fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.simulate.clock import EPOCH, Clock
from tools.simulate.disk import Speed
from tools.simulate.scheduler import MS, Scheduler
from tools.simulate.storage import Storage

DATA = bytes(range(256)) * 64


def simulated(
    tmp_path: Path, *calls: Callable[[Storage, Path], None], seed: int = 0, fault: tuple[str, int] | None = None
):
    """Runs calls as tasks of one node, on a disk of 16 MB/s; returns the scheduler."""
    scheduler = Scheduler(seed, keep=True)
    files = Storage(scheduler, tmp_path)
    disk = files.add("node0", Clock(scheduler), Speed(16_000_000, 16_000_000, 1000))
    if fault:
        disk.inject(*fault)
    process = scheduler.process(0, 100, "boot", "node0", 0)
    tasks = [scheduler.spawn(process, lambda call=call: call(files, disk.root), "task") for call in calls]
    scheduler.run()
    scheduler.end()
    for task in tasks:
        if task.error:
            raise task.error
    return scheduler


def write(files: Storage, root: Path, name: str = "file") -> None:
    descriptor = files.open(root / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        done = 0
        while done < len(DATA):
            done += files.pwrite(descriptor, DATA[done:], done)
        files.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(files: Storage, root: Path) -> bytes:
    descriptor = files.open(root / "file", os.O_RDONLY)
    try:
        return files.pread(descriptor, len(DATA), 0)
    finally:
        os.close(descriptor)


def test_a_disk_is_shared_by_the_tasks_of_its_node(tmp_path):
    one = simulated(tmp_path, write).now
    three = simulated(tmp_path, *(lambda files, root, name=name: write(files, root, name) for name in "abc")).now
    assert MS < one < 2 * MS  # 16 KiB at 16 MB/s
    assert 3 * MS < three < 4 * MS


def test_what_was_written_is_read(tmp_path):
    def both(files: Storage, root: Path) -> None:
        write(files, root)
        assert read(files, root) == DATA

    simulated(tmp_path, both)


@pytest.mark.parametrize(
    ("fault", "number"),
    [("full", errno.ENOSPC), ("quota", errno.EDQUOT), ("eio-write", errno.EIO), ("eio-sync", errno.EIO)],
)
def test_a_write_fails(tmp_path, fault, number):
    errors = []

    def many(files: Storage, root: Path) -> None:
        for name in "abcdefgh":
            try:
                write(files, root, name)
            except OSError as error:
                errors.append(error.errno)

    simulated(tmp_path, many, fault=(fault, 1))
    assert set(errors) == {number}
    assert (len(errors) == 1) == fault.startswith("eio")


@pytest.mark.parametrize(("fault", "number"), [("eio-read", errno.EIO), ("stale", errno.ESTALE)])
def test_a_read_fails(tmp_path, fault, number):
    simulated(tmp_path, write)
    errors = []

    def many(files: Storage, root: Path) -> None:
        for _ in range(16):
            try:
                assert read(files, root) == DATA
            except OSError as error:
                errors.append(error.errno)

    simulated(tmp_path, many, fault=(fault, 2))
    assert errors == [number, number]


def test_a_bit_is_wrong_once_and_only_in_what_was_read(tmp_path):
    simulated(tmp_path, write)
    found = []
    simulated(tmp_path, *[lambda files, root: found.append(read(files, root))] * 12, fault=("flip", 1))
    wrong = [data for data in found if data != DATA]
    assert len(wrong) == 1
    assert sum((a ^ b).bit_count() for a, b in zip(wrong[0], DATA, strict=True)) == 1
    assert (tmp_path / "node0" / "file").read_bytes() == DATA


def test_calls_are_done_in_part_and_take_long(tmp_path):
    simulated(tmp_path, write, fault=("short", 3))
    assert (tmp_path / "node0" / "file").read_bytes() == DATA
    assert simulated(tmp_path, write, fault=("hang", 5000)).now > 5000 * MS
    assert simulated(tmp_path, write, fault=("slow", 20)).now > 20 * MS


def test_a_slow_disk_takes_as_many_times_as_long_and_no_longer(tmp_path):
    normal, slow = simulated(tmp_path, write).now, simulated(tmp_path, write, fault=("slow", 1000)).now
    assert 500 * normal < slow < 2000 * normal


def test_times_of_files_are_virtual(tmp_path):
    def look(files: Storage, root: Path) -> None:
        write(files, root)
        first = files.changed((root / "file").stat())
        files.touch(root / "file")
        assert files.changed((root / "file").stat()) > first >= EPOCH / 1e9

    simulated(tmp_path, look)


def test_the_same_seed_gives_the_same_trace(tmp_path):
    def trace(folder: str, seed: int) -> str:
        (tmp_path / folder).mkdir()
        tasks = [lambda files, root, name=name: write(files, root, name) for name in "abc"]
        return simulated(tmp_path / folder, *tasks, seed=seed, fault=("short", 3)).now

    assert trace("a", 7) == trace("b", 7)
    assert len({trace(str(seed), seed) for seed in range(5)}) > 1


def test_what_another_node_has_replaced_is_seen_late(tmp_path):
    scheduler = Scheduler(0)
    files = Storage(scheduler, tmp_path)
    disk = files.add("meet", Clock(scheduler))
    disk.inject("lag", 1000)
    (disk.root / "new").write_bytes(b"new")
    seen = dict[str, bytes | None]()

    def look(name: str) -> None:
        folder = os.open(disk.root, os.O_RDONLY)
        assert ("file" in files.names(folder)) == (name != "1 at first")
        os.close(folder)
        try:
            descriptor = files.open(disk.root / "file", os.O_RDONLY)
        except FileNotFoundError:
            seen[name] = None
            return
        seen[name] = files.pread(descriptor, 10, 0)
        os.close(descriptor)

    def do(node: int, call: Callable[[], object]) -> None:
        scheduler.spawn(scheduler.process(node, 100, "boot", f"node{node}", 0), call, "task")
        scheduler.run()

    do(0, lambda: files.replace(disk.root / "new", disk.root / "file"))
    for node in (0, 1):
        do(node, lambda node=node: look(f"{node} at first"))
    do(1, lambda: scheduler.pause(1000 * MS))
    do(1, lambda: look("1 later"))
    (disk.root / "newer").write_bytes(b"newer")
    do(0, lambda: files.replace(disk.root / "newer", disk.root / "file"))
    do(1, lambda: look("1 again"))
    disk.heal()
    do(1, lambda: look("1 in the end"))
    assert seen == {
        "0 at first": b"new", "1 at first": None, "1 later": b"new", "1 again": b"new", "1 in the end": b"newer"
    }  # fmt: skip
