"""The bitmap of an unfinished file's blocks."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import StorageError
from dlio.io import world
from dlio.stage.copies.blocks import BLOCK_BYTES, Blocks, _many_runs, _runs, bitmap_bytes

SIZES = [
    0,
    1,
    BLOCK_BYTES - 1,
    BLOCK_BYTES,
    BLOCK_BYTES + 1,
    8 * BLOCK_BYTES,
    8 * BLOCK_BYTES + 5,
    100 * BLOCK_BYTES - 7,
]
steps = st.lists(
    st.tuples(st.booleans(), st.integers(0, 12 * BLOCK_BYTES), st.integers(0, 4 * BLOCK_BYTES)), max_size=9
)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_a_new_bitmap_misses_the_whole_file_and_a_full_one_nothing(tmp_path, num_bytes):
    blocks = Blocks.create(tmp_path / "bits", num_bytes)
    assert blocks.missing(0, num_bytes) == ([(0, num_bytes)] if num_bytes else [])
    assert blocks.is_whole == (num_bytes == 0) and blocks.present_bytes == 0
    blocks.set(0, num_bytes)
    assert blocks.is_whole and blocks.missing(0, num_bytes) == [] and blocks.present_bytes == num_bytes
    blocks.close()


def test_a_new_bitmap_is_empty_whatever_the_disk_says(tmp_path, monkeypatch):
    monkeypatch.setattr(world, "pread", lambda descriptor, count, offset: b"\xff" * count)
    blocks = Blocks.create(tmp_path / "bits", 9 * BLOCK_BYTES)
    assert blocks.missing(0, 9 * BLOCK_BYTES) == [(0, 9 * BLOCK_BYTES)]
    blocks.close()


@given(
    num_bytes=st.sampled_from(SIZES), steps=steps, begin=st.integers(0, 12 * BLOCK_BYTES), size=st.integers(0, 99999)
)
def test_any_sequence_of_changes_gives_what_a_set_of_blocks_gives(tmp_path_factory, num_bytes, steps, begin, size):
    blocks = Blocks.create(tmp_path_factory.mktemp("blocks") / "bits", num_bytes)
    there: set[int] = set()
    for is_set, first, count in steps:
        end = min(first + count, num_bytes)
        for number in range(-(-num_bytes // BLOCK_BYTES)):
            low, high = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, num_bytes)
            if is_set and first <= low and high <= end:
                there.add(number)
            elif not is_set and first < high and low < end and first < end:
                there.discard(number)
        (blocks.set if is_set else blocks.clear)(first, first + count)
    end = min(begin + size, num_bytes)
    touched = range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)) if begin < end else []
    lacking = {number for number in touched if number not in there}
    missing = blocks.missing(begin, begin + size)
    assert {number for low, high in missing for number in range(low // BLOCK_BYTES, -(-high // BLOCK_BYTES))} == lacking
    assert blocks.missing_of([(begin, begin + size)] * 2) == missing
    assert all(high < low for (_, high), (low, _) in pairwise(missing))
    whole = [min((number + 1) * BLOCK_BYTES, num_bytes) - number * BLOCK_BYTES for number in there]
    assert blocks.present_bytes == sum(whole)
    blocks.close()


def test_missing_parts_of_several_ranges_are_joined_over_their_edges(tmp_path):
    blocks = Blocks.create(tmp_path / "bits", 10 * BLOCK_BYTES)
    blocks.set(BLOCK_BYTES, 2 * BLOCK_BYTES)
    wanted = [(5 * BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 9), (0, 3), (4 * BLOCK_BYTES, 5 * BLOCK_BYTES), (20000, 20001)]
    assert blocks.missing_of(wanted) == [(0, BLOCK_BYTES), (4 * BLOCK_BYTES, 6 * BLOCK_BYTES)]
    blocks.close()


def test_another_process_sees_what_is_set_and_finds_it_again_later(tmp_path):
    path, num_bytes = tmp_path / "bits", 20 * BLOCK_BYTES
    blocks = Blocks.create(path, num_bytes)
    blocks.set(0, 3 * BLOCK_BYTES)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(_missing, (path, num_bytes)) == [(3 * BLOCK_BYTES, num_bytes)]
    blocks.close()
    again = Blocks.open(path, num_bytes, is_writable=True)
    again.set(3 * BLOCK_BYTES, num_bytes)
    assert again.is_whole
    again.close()


def _missing(path, num_bytes):
    return Blocks.open(path, num_bytes).missing(0, num_bytes)


def test_threads_that_set_neighbouring_blocks_lose_none(tmp_path):
    num_bytes = 4096 * BLOCK_BYTES
    blocks = Blocks.create(tmp_path / "bits", num_bytes)

    def fill(start: int) -> None:
        for number in range(start, 4096, 4):
            blocks.set(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)

    threads = [threading.Thread(target=fill, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blocks.is_whole
    blocks.close()


def test_a_bitmap_that_is_missing_cut_off_or_a_link_is_an_error_with_its_path(tmp_path):
    path = tmp_path / "bits"
    with pytest.raises(StorageError, match="bits"):
        Blocks.open(path, 10)
    path.write_bytes(bytes(bitmap_bytes(10) + 1))
    with pytest.raises(StorageError, match="expected 1 bytes, found 2"):
        Blocks.open(path, 10)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError, match="not a regular file"):
        Blocks.open(path, 10)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(StorageError, match="link"):
        Blocks.open(tmp_path / "link", 10)


def test_a_reader_cannot_change_the_bitmap(tmp_path):
    Blocks.create(tmp_path / "bits", 10).close()
    blocks = Blocks.open(tmp_path / "bits", 10)
    with pytest.raises(TypeError):
        blocks.set(0, 10)
    blocks.close()


@pytest.mark.parametrize("kind", [_runs, _many_runs])
def test_runs_are_those_of_the_bits(kind: Callable[[int], Iterator[tuple[int, int]]]) -> None:
    chance = random.Random(5)
    for number in (
        0,
        1,
        2,
        0b1011,
        (1 << 70) - 1,
        *(chance.getrandbits(300) & chance.getrandbits(300) for _ in range(20)),
    ):
        runs = list(kind(number))
        assert sum(sum(1 << bit for bit in range(*run)) for run in runs) == number
        assert all(end < begin for (_, end), (begin, _) in pairwise(runs))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_bitmap_of_another_user_is_refused(tmp_path):
    Blocks.create(tmp_path / "bits", 5).close()
    os.chown(tmp_path / "bits", 2001, 2001)
    with pytest.raises(StorageError, match="not a regular file of this user"):
        Blocks.open(tmp_path / "bits", 5)


def test_damaged_bytes_take_every_block_that_they_touch(tmp_path):
    blocks = Blocks.create(tmp_path / "bits", 5 * BLOCK_BYTES)
    blocks.set(0, 5 * BLOCK_BYTES)
    blocks.clear(BLOCK_BYTES - 1, BLOCK_BYTES + 1)
    assert blocks.missing(0, 5 * BLOCK_BYTES) == [(0, 2 * BLOCK_BYTES)]
    blocks.close()


def test_a_block_that_is_there_in_part_does_not_count(tmp_path):
    blocks = Blocks.create(tmp_path / "bits", 4 * BLOCK_BYTES)
    blocks.set(1, 2 * BLOCK_BYTES)
    blocks.set(2 * BLOCK_BYTES, 3 * BLOCK_BYTES + 1)
    assert blocks.missing(0, 4 * BLOCK_BYTES) == [(0, BLOCK_BYTES), (3 * BLOCK_BYTES, 4 * BLOCK_BYTES)]
    blocks.close()
