"""Files that are read while they arrive, with an agent in this process."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dlio.errors import StorageError
from dlio.io import arrivals
from dlio.io.random_access import RandomAccessFile
from dlio.stage.client.arriving import ArrivingFile, PassedFile, Wanted, open_arriving
from dlio.stage.copies.blocks import BLOCK_BYTES, Blocks
from tests.helpers.arriving import through

SIZE = 20 * BLOCK_BYTES + 99
DATA = random.Random(5).randbytes(SIZE)


@dataclass
class Source:
    """Brings blocks of DATA into a sparse file; records what it was asked for."""

    folder: Path
    keeps: bool = True
    asked: list[list[tuple[int, int]]] = field(default_factory=list)

    def __post_init__(self):
        self.unfinished, self.bits, self.final = (self.folder / name for name in ("part", "part.blocks", "final"))
        with self.unfinished.open("wb") as file:
            file.truncate(SIZE)
        self.blocks = Blocks.create(self.bits, SIZE)

    def need(self, ranges):
        self.asked.append(list(ranges))
        if self.keeps:
            self.write(self.blocks.missing_of(ranges), DATA)
        return self.keeps

    def write(self, ranges, data):
        with self.unfinished.open("r+b") as file:
            for begin, end in ranges:
                file.seek(begin)
                file.write(data[begin:end])
        for begin, end in ranges:
            self.blocks.set(begin, end)

    def read(self, ranges, memory):
        self.asked.append(list(ranges))
        memory[:] = b"".join(DATA[begin:end] for begin, end in ranges)

    def bad(self, ranges):
        for begin, end in ranges:
            self.blocks.clear(begin, end)
        self.need(ranges)

    @property
    def wanted(self):
        return Wanted(self.need, self.read, self.bad)

    def open(self):
        return through(self.arrival(self.final))

    def arrival(self, path):
        return open_arriving(self.unfinished, self.bits, self.final, SIZE, self.wanted) if path == self.final else None


@pytest.fixture
def source(tmp_path):
    made = Source(tmp_path)
    yield made
    made.blocks.close()


def read_all(file, ranges):
    offsets, ends = np.array(ranges, dtype=np.int64).T
    return list(map(bytes, file.read_many(offsets, ends - offsets)))


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "passed"])
def test_whatever_is_read_is_what_the_source_has(source, keeps):
    source.keeps = keeps
    file, choice = source.open(), random.Random(3)
    for _ in range(40):
        points = sorted(choice.sample(range(SIZE + 1), 8))
        ranges = [*zip(points[::2], points[1::2], strict=True), (SIZE, SIZE)]
        assert read_all(file, ranges) == [DATA[begin:end] for begin, end in ranges]
        assert file.read(points[0], points[1] - points[0]) == DATA[points[0] : points[1]]
    file.close()


def test_what_is_there_is_not_asked_for_again_and_neighbours_come_in_one_request(source):
    file = source.open()
    read_all(file, [(5, 9), (BLOCK_BYTES, BLOCK_BYTES + 1), (9 * BLOCK_BYTES, 9 * BLOCK_BYTES + 3)])
    assert source.asked == [[(0, 2 * BLOCK_BYTES), (9 * BLOCK_BYTES, 10 * BLOCK_BYTES)]]
    read_all(file, [(0, 2 * BLOCK_BYTES)])
    file.will_need(np.array([9 * BLOCK_BYTES]), np.array([10 * BLOCK_BYTES]))
    assert len(source.asked) == 1
    file.close()


def test_ranges_beyond_the_end_are_cut_as_in_a_file_that_is_whole(source):
    source.folder.joinpath("whole").write_bytes(DATA)
    whole = RandomAccessFile(source.folder / "whole")
    ranges = [(SIZE - 5, SIZE + 5), (SIZE + 3, SIZE + 9)]
    for file in (source.open(), through(PassedFile(SIZE, source.wanted))):
        assert read_all(file, ranges) == read_all(whole, ranges) == [DATA[-5:], b""]
        file.close()
    whole.close()


def test_what_is_read_from_the_source_replaces_wrong_bytes(source):
    source.write([(0, BLOCK_BYTES)], bytes(SIZE))
    file = source.open()
    assert file.read(7, 3) == bytes(3)
    with arrivals.from_source():
        assert file.read(7, 3) == DATA[7:10]
    assert file.read(7, 3) == DATA[7:10]
    file.close()


def test_an_open_file_stays_readable_when_it_gets_its_name_and_asks_for_nothing_more(source):
    file = source.open()
    source.need([(0, SIZE)])
    source.unfinished.rename(source.final)
    source.bits.unlink()
    source.asked.clear()
    assert read_all(file, [(0, SIZE)]) == [DATA] == read_all(file, [(0, SIZE)])
    with arrivals.from_source():
        assert file.read(1, 2) == DATA[1:3]
    assert source.asked == []
    file.close()


def test_a_file_that_got_its_name_meanwhile_is_opened_by_it(source):
    source.final.write_bytes(DATA)
    file = source.arrival(source.final)
    assert isinstance(file, RandomAccessFile) and not file.is_arriving
    file.close()


def test_a_file_whose_blocks_do_not_come_is_read_through_the_agent(source):
    def need(ranges):
        source.asked.append(ranges)
        return True  # of an agent that began again, and fills another file

    wanted = Wanted(need, source.read, source.bad)
    file = through(open_arriving(source.unfinished, source.bits, source.final, SIZE, wanted))
    assert file.read(3, 9) == DATA[3:12]
    assert source.asked == [[(0, BLOCK_BYTES)], [(3, 12)]]
    file.close()


def test_a_file_of_another_size_or_under_no_name_is_not_opened(source):
    assert open_arriving(source.folder / "none", source.bits, source.final, SIZE, source.wanted) is None
    with pytest.raises(StorageError, match="expected 7"):
        open_arriving(source.unfinished, source.bits, source.final, 7, source.wanted)


def test_only_within_opening_does_a_missing_file_arrive(source):
    with pytest.raises(StorageError, match="final"):
        RandomAccessFile(source.final)
    with arrivals.opening(source):
        file = RandomAccessFile(source.final)
        with pytest.raises(StorageError, match="other"):
            RandomAccessFile(source.folder / "other")
    assert file.is_arriving and file.num_bytes == SIZE and file.read(0, SIZE) == DATA
    assert file.read_many(np.array([1]), np.array([5])) == [DATA[1:6]]
    file.close()
    file.close()
    with pytest.raises(StorageError, match="closed"):
        file.read(0, 1)


def test_a_finished_arriving_file_is_an_arriving_file(source):
    file = source.arrival(source.final)
    assert isinstance(file, ArrivingFile) and file.num_bytes == SIZE
    file.close()
