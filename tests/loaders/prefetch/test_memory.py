"""Memory of batches: used again, and never while somebody holds a part of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dlio.loaders.prefetch.memory import STRIP_BYTES, BatchMemory, Strip
from tests.helpers.lazy import Lazy

torch = Lazy("torch")
SHAPE = (4, 1024, 1024)


def address(array: np.ndarray[Any, Any]) -> int:
    return array.__array_interface__["data"][0]


def test_released_memory_is_reused() -> None:
    memory = BatchMemory()
    first = memory.empty(SHAPE, np.uint8)
    where = address(first)
    assert first.shape == SHAPE and first.dtype == np.uint8 and first.flags.c_contiguous
    del first
    assert address(memory.empty((1024, 1024), np.float32)) == where


def test_memory_begins_where_tensorflow_needs_no_copy() -> None:
    memory = BatchMemory()
    held = [memory.empty(SHAPE, np.uint8) for _ in range(3)]
    assert [address(array) % 64 for array in held] == [0, 0, 0]


@pytest.mark.parametrize(
    "keep",
    [
        lambda array: array[2:, 5],
        lambda array: array.reshape(-1).view(np.int32)[::2],
        memoryview,
        lambda array: torch.from_numpy(array),
        lambda array: torch.from_numpy(array)[1:],
        lambda array: np.from_dlpack(array),
    ],
)
def test_referenced_memory_is_not_reused(keep: Callable[[Any], Any]) -> None:
    memory = BatchMemory()
    held = keep(memory.empty(SHAPE, np.uint8))
    other = memory.empty(SHAPE, np.uint8)
    other[...] = 1
    before = np.asarray(held).copy()
    other[...] = 2
    assert (np.asarray(held) == before).all()
    assert not np.shares_memory(np.asarray(held), other)


def test_no_more_is_kept_than_allowed() -> None:
    memory = BatchMemory(limit=2)
    held = [memory.empty(SHAPE, np.uint8) for _ in range(5)]
    assert len({address(array) for array in held}) == 5
    addresses = {address(array) for array in held[-2:]}
    held.clear()
    again = [memory.empty(SHAPE, np.uint8) for _ in range(2)]
    assert {address(array) for array in again} == addresses
    memory.clear()
    assert address(memory.empty((2, *SHAPE), np.uint8)) not in addresses


@pytest.mark.parametrize("limit", [0, 1])
def test_a_limit_of_one_keeps_one_piece(limit: int) -> None:
    memory = BatchMemory(limit)
    where = [address(array) for array in [memory.empty(SHAPE, np.uint8) for _ in range(3)]]
    assert [address(memory.empty(SHAPE, np.uint8)) for _ in range(2)] == where[-1:] * 2
    held = [memory.empty(SHAPE, np.uint8) for _ in range(2)]
    assert address(held[0]) == where[-1] and len(memory._kept) == 1


def test_copies_start_without_memory() -> None:
    memory = BatchMemory()
    held = memory.empty(SHAPE, np.uint8)
    copy = pickle.loads(pickle.dumps(memory))
    assert not np.shares_memory(held, copy.empty(SHAPE, np.uint8))


@pytest.mark.parametrize(
    "keep",
    [
        lambda view: view[10:20],
        lambda view: view.cast("I")[::2],
        lambda view: np.frombuffer(view, np.uint8)[5:],
        lambda view: Image.frombuffer("L", (20, 20), view, "raw", "L", 0, 1),
        pickle.PickleBuffer,
        lambda view: view.obj,
    ],
)
def test_memory_to_read_into_is_reused_when_unreferenced(keep: Callable[[memoryview], Any]) -> None:
    memory = BatchMemory()
    first = Strip(memory).take(1000)
    address_of_first = address(np.asarray(first))
    kept = keep(first.toreadonly())
    del first
    other = Strip(memory).take(1000)
    assert address(np.asarray(other)) != address_of_first
    del kept
    assert address(np.asarray(Strip(memory).take(50))) == address_of_first


@pytest.mark.parametrize("size", [3, STRIP_BYTES + 1])
def test_what_was_read_is_hashed_and_compared_as_bytes_are(size: int) -> None:
    memory = Strip(BatchMemory()).take(size)
    memory[:] = bytes(size - 1) + b"!"
    view = memory.toreadonly()
    assert {bytes(view): "found"}[view] == "found" and {view[1:]: 1} == {bytes(view[1:]): 1}


def test_memory_for_reading_comes_one_behind_the_other() -> None:
    strip = Strip(BatchMemory())
    sizes = [0, 5, 3_000_000, 1_194_299, 1, 0, 5_000_000, 7]
    taken = [np.asarray(strip.take(size)) for size in sizes]
    assert [array.nbytes for array in taken] == sizes
    assert address(taken[3]) == address(taken[2]) + 3_000_000 == address(taken[1]) + 3_000_005
    taken = [array for array in taken if array.size]
    assert not any(np.shares_memory(a, b) for number, a in enumerate(taken) for b in taken[:number])


def test_memory_of_large_values_is_reused_for_smaller_ones_within_a_bound() -> None:
    memory = BatchMemory(limit=10)

    def where(*sizes: int) -> list[int]:
        taken = [np.asarray(Strip(memory).take(size)) for size in sizes]
        assert [array.nbytes for array in taken] == list(sizes)
        assert not any(np.shares_memory(a, b) for number, a in enumerate(taken) for b in taken[:number])
        return [address(array) for array in taken]

    first, second = where(12_000_000, 9_000_000)
    assert where(8_500_000, 11_000_000) == [second, first]
    assert where(7_000_000)[0] == second  # the smallest that fits
    assert where(5_000_000)[0] not in (first, second)  # none is up to half as large again: it replaces one
    assert sorted(piece.num_bytes for piece in memory._kept) == [5_000_000, 9_000_000]
    where(60_000_000, 20_000_000, 20_000_000, 20_000_000, 20_000_000)
    assert sorted(piece.num_bytes for piece in memory._kept) == [20_000_000] * 3  # all that fit into 15 of 4 MiB
