"""Ranges read at given positions: the requested bytes, into the given memory, cut at the end of the file."""

from __future__ import annotations

import errno
import os
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlio import native
from dlio.errors import CorruptRecordError, StorageError
from dlio.io import arrivals
from dlio.io.random_access import OutRows, RandomAccessFile, read_ranges

NUM_BYTES = 900_000
DATA = random.Random(0).randbytes(NUM_BYTES)
ranges = st.tuples(st.integers(0, NUM_BYTES + 100), st.sampled_from([0, 1, 700, 5_000, 92_000, 300_000]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 900,000 random bytes."""
    path = tmp_path_factory.mktemp("positional") / "shard"
    path.write_bytes(DATA)
    return path


@pytest.fixture(params=[True, False], ids=["core", "python"], autouse=True)
def has_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled core reads, or Python."""
    if request.param and not native.available:
        pytest.skip("the compiled core is not installed")
    monkeypatch.setattr(native, "available", request.param)


def read(path: Path, wanted: list[tuple[int, int]]) -> list[memoryview]:
    file = RandomAccessFile(path)
    offsets, sizes = np.array(wanted, dtype=np.int64).reshape(-1, 2).T
    values = file.read_many(offsets, sizes)
    file.close()
    return values


@given(wanted=st.lists(ranges, max_size=30), rising=st.booleans())
def test_ranges_are_those_of_the_file(path: Path, wanted: list[tuple[int, int]], rising: bool) -> None:
    wanted = sorted(wanted) if rising else wanted
    values = read(path, wanted)
    assert values == [DATA[start : start + size] for start, size in wanted]
    assert all(value.readonly for value in values)


def test_a_file_that_shrank_gives_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(DATA[:10_000])
    file = RandomAccessFile(path)
    with path.open("r+b") as other:
        other.truncate(5_500)
    offsets, sizes = np.array([4_000, 5_000, 6_000]), np.array([900, 900, 900])
    read = [bytes(value) for value in file.read_many(offsets, sizes)]
    assert read == [DATA[4_000:4_900], DATA[5_000:5_500], b""]
    file.close()


def read_rows(file: RandomAccessFile, offsets: list[int], memory: NDArray[np.uint8], rows: list[int]) -> list[bool]:
    """Returns which ranges are whole; their checksums are right."""
    crcs = np.array([crc32c(b"before")] * len(rows), np.uint32)
    size = memory.shape[1]
    sizes, places = np.full(len(rows), size), np.array(rows, np.int64) * size
    zeros = np.zeros(len(rows), np.int64)
    counts = read_ranges([file], zeros, np.array(offsets, np.int64), sizes, memory.reshape(-1).data, places, crcs)
    ranges = [DATA[offset : offset + memory.shape[1]] for offset in offsets]
    assert counts.tolist() == [len(data) for data in ranges]
    assert crcs.tolist() == [crc32c(b"before" + data) for data in ranges]
    return (counts == sizes).tolist()


@pytest.mark.parametrize("size", [1, 100, 3072, 9999])
def test_rows_are_read_in_place_and_a_short_one_is_told(path: Path, size: int) -> None:
    file, memory = RandomAccessFile(path), np.zeros((5, size), np.uint8)
    offsets = [7, 7 + size, 7 + 2 * size, NUM_BYTES + 1]
    assert read_rows(file, offsets, memory, [1, 2, 0, 3]) == [True, True, True, False]
    order = [DATA[at : at + size] for at in (7 + 2 * size, 7, 7 + size)]
    assert [row.tobytes() for row in memory] == [*order, bytes(size), bytes(size)]
    assert read_rows(file, [NUM_BYTES - 2 * size, NUM_BYTES - size], memory, [3, 4]) == [True, True]
    assert memory[3:].tobytes() == DATA[-2 * size :]
    assert read_rows(file, [], memory, []) == []
    file.close()
    with pytest.raises(StorageError, match="open the shard again"):
        read_rows(file, [0], memory, [0])


@pytest.mark.parametrize(("size", "gap"), [(3072, 64), (100, 4096), (100, 4097), (7, -3), (300_000, 5), (500_000, 0)])
def test_rows_with_something_between_them_are_read_to_their_places(path: Path, size: int, gap: int) -> None:
    offsets = np.arange(13, NUM_BYTES, size + gap)[:300]
    file, memory = RandomAccessFile(path), np.zeros((len(offsets), size), np.uint8)
    rows = np.random.default_rng(0).permutation(len(offsets))
    whole = read_rows(file, offsets.tolist(), memory, rows.tolist())
    assert whole == (offsets + size <= NUM_BYTES).tolist()
    expected = [DATA[offset : offset + size].ljust(size, b"\0") for offset in offsets]
    assert [memory[row].tobytes() for row in rows] == expected
    file.close()


def test_no_rows_have_memory_too() -> None:
    assert OutRows(np.empty((0, 2, 3), np.float32), np.arange(0)).memory.shape == (0, 24)


def test_the_last_of_adjacent_rows_is_short(path: Path) -> None:
    file, memory = RandomAccessFile(path), np.zeros((3, 100), np.uint8)
    assert read_rows(file, [NUM_BYTES - 150, NUM_BYTES - 50], memory, [0, 1]) == [True, False]
    assert memory[:2].tobytes() == DATA[-150:] + bytes(50)
    file.close()


@pytest.mark.parametrize(
    "wanted", [[(0, 300), (310, 0), (320, 5_000), (9_500, 270_000), (279_500, 1)], [(9, 4), (3, 8)]]
)
def test_ranges_of_any_size_go_to_their_places(path: Path, wanted: list[tuple[int, int]]) -> None:
    offsets, sizes = np.array(wanted, np.int64).T.copy()
    places = sizes.sum() - sizes.cumsum()  # the last range first
    file, memory, crcs = RandomAccessFile(path), np.zeros(sizes.sum(), np.uint8), np.zeros(len(sizes), np.uint32)
    assert read_ranges([file], sizes * 0, offsets, sizes, memory.data, places, crcs).tolist() == sizes.tolist()
    expected = [DATA[offset : offset + size] for offset, size in wanted]
    assert memory.tobytes() == b"".join(reversed(expected))
    assert crcs.tolist() == [crc32c(data) for data in expected]
    file.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"places": [19]},
        {"places": [-1]},
        {"places": [2**63 - 1]},
        {"sizes": [-1]},
        {"sizes": [28]},
        {"sizes": [2**63 - 1]},
        {"starts": [-1]},
        {"starts": [2**63 - 5]},
        {"places": [0, 1]},
        {"sizes": []},
        {"crcs": []},
        {"files": [0, 0]},
        {"files": [-1]},
        {"files": [2**32]},
    ],
)
def test_ranges_beside_the_memory_are_refused(path: Path, wrong: dict[str, list[int]]) -> None:
    given = {"files": [0], "starts": [0], "sizes": [9], "places": [0], "crcs": [0]} | wrong
    starts, sizes, places = (np.array(given[name], np.int64) for name in ("starts", "sizes", "places"))
    crcs = np.array(given["crcs"], np.uint32)
    with path.open("rb") as file, pytest.raises(ValueError, match="expected"):
        files = np.array(given["files"], np.int64) + file.fileno() * (given["files"][0] == 0)
        native.read_ranges(files, starts, sizes, np.zeros(27, np.uint8), places, crcs)


@pytest.mark.parametrize("has_core", [True], ids=["core"], indirect=True)  # Python's own reads continue by themselves
def test_a_read_that_a_signal_ends_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, core_read = [], native.read_ranges

    def interrupted(descriptors: NDArray[np.int64], *columns: Any) -> tuple[NDArray[np.int64], int, int, float]:
        starts, sizes, out, places, crcs = columns
        calls.append(len(starts))
        counts, done, _, waited = core_read(descriptors[:2], starts[:2], sizes[:2], out, places[:2], crcs)
        left = np.zeros(len(starts), np.int64)
        left[:2] = counts
        return left, done, errno.EINTR if len(starts) > 2 else 0, waited

    monkeypatch.setattr(native, "read_ranges", interrupted)
    wanted = [(number * 9_000, 100) for number in range(5)]
    assert read(path, wanted) == [DATA[start : start + size] for start, size in wanted]
    assert calls == [5, 3, 1]


def test_a_refused_read_names_the_offset(path: Path) -> None:
    file = RandomAccessFile(path)
    assert file._descriptor is not None
    folder = os.open(path.parent, os.O_RDONLY)
    os.dup2(folder, file._descriptor)
    os.close(folder)
    with pytest.raises(StorageError, match=rf"cannot read {path} at 7: Is a directory"):
        file.read_many(np.array([7]), np.array([1]))
    file.close()


def test_a_closed_file_says_so(path: Path) -> None:
    file = RandomAccessFile(path)
    file.close()
    with pytest.raises(StorageError, match="open the shard again"):
        file.read_many(np.array([0]), np.array([1]))


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        RandomAccessFile(tmp_path / "pipe")


def test_a_file_that_shrank_is_damage_where_all_is_asked_for(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    file = RandomAccessFile(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"cont")
    with pytest.raises(CorruptRecordError, match="the file has shrunk"):
        file.read(0, 7)
    file.close()


def test_a_read_beyond_the_memory_names_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> bytes:
        raise MemoryError

    file = RandomAccessFile(path)
    monkeypatch.setattr(os, "pread", refused)
    with pytest.raises(StorageError, match=rf"cannot read 700 bytes of {path} at 5: .*memory") as caught:
        file.read(5, 700)
    file.close()
    assert caught.value.errno == errno.ENOMEM


def test_a_size_that_a_stranger_names_takes_no_memory_before_bytes_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Absurd:
        num_bytes = 1 << 62

        def fill(self, offsets: object, sizes: object, memory: memoryview, places: object) -> None:
            raise StorageError(f"gave 37 bytes, asked for {len(memory)}")

        def close(self) -> None:
            pass

    monkeypatch.setattr(arrivals, "find", lambda path: Absurd())
    file = RandomAccessFile(tmp_path / "absent")
    with pytest.raises(StorageError, match="cannot read 1,125,899,906,842,624 bytes of"):
        file.read(0, 1 << 50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StorageError, match="gave 37 bytes, asked for 536870912"):
        file.read(0, 1 << 29)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB
