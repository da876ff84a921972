"""Reads ahead of use from slow storage: the same samples, the same errors, within bounds."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.manifest import Manifest
from dlio.errors import CorruptRecordError, StorageError
from dlio.images import Resize
from dlio.io import waits
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.batches import with_bytes
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.prefetch import reads as reads_module
from dlio.loaders.prefetch import work as ahead_module
from dlio.loaders.prefetch.reads import ReadAhead, Reads, WaitTimes, pieces
from dlio.loaders.prefetch.work import Work, prefetched
from dlio.loaders.sampling.order import Window
from tests.loaders.packing import damage
from tests.loaders.photos import loader_of, numbers


@pytest.fixture(params=[1, 8, 64])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes everything be read ahead of need, in pieces of a request, up to so many at a time; returns how many."""
    monkeypatch.setattr(WaitTimes, "is_slow", True)
    monkeypatch.setattr(reads_module, "_REQUESTS", 1)
    monkeypatch.setattr(reads_module, "_FIRST_AHEAD", request.param)
    monkeypatch.setattr(reads_module, "_MOST_AHEAD", request.param)
    return int(request.param)


def digests(samples: PackedSamples, shuffle: Any, num_threads: int) -> list[str]:
    """Returns the digest of each batch."""
    loader = Loader(
        ArrayBatches(samples), 8, shuffle=shuffle, end="drop", rank=0, world_size=1, num_workers=num_threads
    )
    with closing(loader):
        return [_digest(batch) for batch in loader]


def _digest(batch: Any) -> str:
    values = [
        value.tobytes() if isinstance(value, np.ndarray) else b"|".join(value) for value in with_bytes(batch).values()
    ]
    return sha256(b"||".join(values)).hexdigest()


@pytest.mark.parametrize(("transform", "shuffle"), [(None, False), (None, True), (None, Window(2)), (Resize(16), True)])
def test_batches_do_not_depend_on_what_is_read_ahead(
    packed_anyhow: Manifest, shuffle: Any, transform: Resize | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    for is_slow in (False, True):
        monkeypatch.setattr(WaitTimes, "is_slow", is_slow)
        for num_threads in (0, 1, 3):
            made[is_slow, num_threads] = digests(PackedSamples(packed_anyhow, transform), shuffle, num_threads)
    assert len(set(made[False, 0])) == 5
    assert all(each == made[False, 0] for each in made.values())


def test_batches_are_the_same_at_every_depth(packed: Manifest, slow: int) -> None:
    with closing(loader_of(packed, 4, shuffle=True)) as loader, pytest.MonkeyPatch.context() as patch:
        made = numbers(loader)
        patch.setattr(WaitTimes, "is_slow", False)
        loader.set_epoch(0)
        assert made == numbers(loader)


def damaged_copy(packed: Manifest, folder: Path) -> Manifest:
    shutil.copytree(packed.root, folder)
    copy = Manifest.load(folder)
    damage(copy, record=2, shard=5)
    return copy


@pytest.mark.parametrize("num_threads", [0, 2])
def test_damage_read_ahead_is_raised_once_at_its_batch(
    packed: Manifest, tmp_path: Path, slow: int, num_threads: int
) -> None:
    with closing(loader_of(damaged_copy(packed, tmp_path / "copy"), 4, num_workers=num_threads)) as loader:
        batches = iter(loader)
        assert numbers(islice(batches, 6)) == list(range(24))
        with pytest.raises(CorruptRecordError, match=r"shard-0*5\D.*record 2, offset \d+"):
            numbers(batches)
        assert list(batches) == []


def test_damage_met_ahead_is_replaced_as_ever(packed: Manifest, tmp_path: Path, slow: int) -> None:
    copy = damaged_copy(packed, tmp_path / "copy")
    samples = PackedSamples(copy, Resize(16), max_skipped=1)
    made = digests(samples, False, 2)
    assert len(samples.skips) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WaitTimes, "is_slow", False)
        assert made == digests(PackedSamples(copy, Resize(16), max_skipped=1), False, 0)


def test_a_file_truncated_during_read_ahead_is_named(packed: Manifest, tmp_path: Path, slow: int) -> None:
    shutil.copytree(packed.root, tmp_path / "copy")
    copy = Manifest.load(tmp_path / "copy")
    with closing(loader_of(copy, 4)) as loader:
        assert len(numbers(loader)) == 40  # all shards are open now
        path = copy.root / copy.shards[4].files[0].name
        path.write_bytes(path.read_bytes()[:100])
        batches = iter(loader)
        good = numbers(islice(batches, 5))
        with pytest.raises(CorruptRecordError, match=path.name):
            numbers(batches)
        assert good == list(range(20))


def test_a_disk_that_fails_is_named(packed: Manifest, slow: int) -> None:
    with closing(loader_of(packed, 4)) as loader:
        numbers(loader)
        for slot in loader.source.samples.opened.pool._slots.values():
            assert slot.reader is not None
            slot.reader.close()  # reads of a closed file fail as those of a disk that was removed
        with pytest.raises(StorageError, match="shard-"):
            numbers(loader)


class Gate:
    """Reads that continue when the gate is opened, and tell how many are under way."""

    def __init__(self) -> None:
        self.opened, self.begun = threading.Event(), threading.Semaphore(0)
        self.num_begun = 0

    def reads(self, num_pieces: int, num_bytes: int = 0) -> Reads[int, list[int]]:
        def read(rows: Any) -> list[int]:
            self.num_begun += 1
            self.begun.release()
            self.opened.wait(60)
            return list(range(num_pieces)) if rows is None else rows.tolist()

        pace = WaitTimes()
        pace.note(1.0)
        return Reads(read, list, lambda: np.array_split(np.arange(num_pieces), num_pieces), num_bytes, pace)

    def work(self, reads: Reads[int, list[int]]) -> Work[list[int]]:
        item: list[int] = []
        return Work(item, (lambda: item.extend(reads.take()),), reads=(reads,))


def test_reads_in_progress_are_independent_of_decoding_threads() -> None:
    gate = Gate()
    items = prefetched((gate.work(gate.reads(6)) for _ in range(3)), num_threads=1, prefetch=2)
    begun: list[bool] = []

    def open_gate() -> None:
        begun.extend(gate.begun.acquire(timeout=60) for _ in range(6))
        gate.opened.set()

    opened = threading.Thread(target=open_gate)
    opened.start()
    assert list(items) == [list(range(6))] * 3
    opened.join()
    assert begun == [True] * 6, "the first batch is read alone"


def test_no_more_bytes_are_ahead_than_the_bound_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "_AHEAD_BYTES", 100)
    gate = Gate()
    with ReadAhead() as readers:
        readers.add([gate.reads(1, 40) for _ in range(10)])
        assert [gate.begun.acquire(timeout=60) for _ in range(2)] == [True, True]
        assert len(readers._begun) == 2
        gate.opened.set()


def test_reads_above_the_bound_begin_when_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads_module, "_AHEAD_BYTES", 100)
    gate = Gate()
    with ReadAhead() as readers:
        large = gate.reads(5, 1000)
        readers.add([large])
        assert not readers._begun
        taker = threading.Thread(target=large.take)
        taker.start()
        assert all(gate.begun.acquire(timeout=60) for _ in range(5)), "all at once"
        gate.opened.set()
        taker.join()


def test_how_many_are_ahead_grows_while_they_are_waited_for() -> None:
    gate = Gate()
    with ReadAhead() as readers:
        coming = [gate.reads(4) for _ in range(40)]
        readers.add(coming)
        assert sum(map(len, readers._begun.values())) == 8
        readers.taken(coming[0])
        assert sum(map(len, readers._begun.values())) == 16
        for each in coming[1:9]:
            readers.taken(each)
        gate.opened.set()
        assert readers._most == len(readers._threads._threads) == 64


def test_nothing_is_read_ahead_from_memory() -> None:
    gate = Gate()
    gate.opened.set()
    with ReadAhead() as readers:
        reads = gate.reads(8)
        for _ in range(15):
            reads.pace.note(0)
        readers.add([reads])
        assert gate.num_begun == 0 and not readers._threads._threads
        assert reads.take() == list(range(8)) and gate.num_begun == 1


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_one_row_tells_whether_threads_pay(seconds: float) -> None:
    pace, made = WaitTimes(), list[int]()

    def read(rows: Any) -> list[int]:
        waits.note(seconds)
        found = list(range(8)) if rows is None else rows.tolist()
        made.extend(found)
        return found

    with ReadAhead() as readers:
        coming = [Reads(read, list, lambda: np.split(np.arange(8), 4), 0, pace) for _ in range(2)]
        readers.add(coming)
        assert not readers._begun
        assert [each.take() for each in coming] == [list(range(8))] * 2
        assert made[0] == 0 and sorted(made) == sorted([*range(8)] * 2), "each once"
        assert bool(readers._threads._threads) == (seconds > 0)


@pytest.mark.parametrize("notes", [True, False])
def test_only_waiting_for_storage_makes_it_slow(notes: bool) -> None:
    pace = WaitTimes()

    def read(rows: object) -> list[int]:
        time.sleep(0.002)
        waits.note(0) if notes else None
        return []

    for _ in range(15):
        Reads(read, list, list, 0, pace).take()
    assert pace.is_slow != notes


def test_a_part_gets_what_nobody_reads_any_more() -> None:
    gate = Gate()
    gate.opened.set()
    readers = ReadAhead()
    reads, later = gate.reads(64), gate.reads(3)
    readers.add([reads, later])
    assert readers.end(60)
    assert reads.take() == list(range(64)) and later.take() == list(range(3))


def test_an_interrupt_ends_the_loop_though_reads_hang(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ahead_module, "INTERRUPT_SECONDS", 0.01)
    gate = Gate()

    def interrupt() -> None:
        gate.begun.acquire(timeout=60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def works() -> Iterator[Work[list[int]]]:
        threading.Thread(target=interrupt).start()
        yield gate.work(gate.reads(3))

    with pytest.raises(KeyboardInterrupt):
        list(prefetched(works(), num_threads=2, prefetch=1))
    assert not gate.opened.is_set() and "hang" in caplog.text
    gate.opened.set()


@given(st.lists(st.integers(0, 500), unique=True, min_size=1, max_size=60), st.integers(1, 1 << 20))
def test_pieces_are_all_rows_in_the_order_of_reading(numbers: list[int], sample_bytes: int) -> None:
    cut = pieces(np.array(numbers), sample_bytes)
    assert [numbers[row] for rows in cut for row in rows] == sorted(numbers)
    assert all(len(rows) for rows in cut)


def test_pieces_hold_a_few_requests() -> None:
    side_by_side, apart = np.arange(256), np.arange(0, 512, 2)
    assert len(pieces(apart, 2000)) == len(pieces(apart, 92_000)) == 64
    assert len(pieces(side_by_side, 2000)) == 1
    assert 20 <= len(pieces(side_by_side, 92_000)) <= 26
    assert len(pieces(side_by_side, 5 << 20)) == 256
