"""Which samples each shard contains: a pure function of sizes, a target and a seed."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from dlio.errors import UsageError
from dlio.pack.listing.base import take

if TYPE_CHECKING:
    import numpy as np

    from dlio.pack.listing.base import Column

    Array = np.ndarray[Any, Any]

DEFAULT_SHARD_BYTES = 256 << 20  # 100 MB to 1 GB suits Lustre's storage targets, and a node's cache


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to write: its name, the numbers of its samples in order, int64 if no range, and their size in bytes."""

    name: str
    indices: range | Array
    num_bytes: int


def shard_name(number: int) -> str:
    """Returns the name of a shard, the stem of its files' names."""
    return f"shard-{number:06d}"


def shard_number(file_name: str) -> int | None:
    """Returns the number of the shard that a file or folder of this name belongs to, None where it belongs to none."""
    digits = file_name.partition(".")[0].removeprefix("shard-")
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 20):
        return None
    return int(digits) if file_name.startswith(f"{shard_name(int(digits))}.") else None


def plan_shards(
    num_bytes: Column,
    *,
    shard_bytes: int | None = None,
    num_shards: int | None = None,
    bounds: Column | None = None,
    seed: int | None = None,
) -> list[ShardPlan]:
    """Returns the shards of samples of these sizes, each sample in exactly one, the shards about equally large.

    Args:
        num_bytes: int64 of shape (n,), the size of every sample, n > 0.
        shard_bytes: the size to aim at, by default 256 MiB; the number of shards follows from it.
        num_shards: the number of shards, instead of `shard_bytes`.
        bounds: where shards begin, and the end, if neither size nor number is given.
        seed: shuffles the samples; without it they keep their order.

    Raises:
        UsageError: there are fewer samples than shards, or a size or number is not positive.
    """
    for value in (shard_bytes, num_shards):
        if value is not None and (not isinstance(value, int) or value <= 0):
            raise UsageError(f"the size of shards in bytes and their number are a whole number from 1, found {value!r}")
    count = len(num_bytes)
    order = range(count) if seed is None else shuffled(count, seed)
    sizes: Any = take(num_bytes, order)
    ends = array("q", accumulate(memoryview(sizes), initial=0))
    if bounds is None or shard_bytes is not None or num_shards is not None:
        cuts = _bounds(ends, shard_bytes or DEFAULT_SHARD_BYTES, num_shards)
    else:
        cuts = bounds.tolist()
    return [
        ShardPlan(shard_name(number), order[start:stop], ends[stop] - ends[start])
        for number, (start, stop) in enumerate(pairwise(cuts))
    ]


def shuffled(count: int, seed: int) -> Array:
    """Returns the numbers 0 to `count` - 1 shuffled, int64 of shape (count,), the same with every numpy.

    numpy promises its bit generators' streams, but not what `Generator.permutation` makes of them.

    Raises:
        UsageError: the seed is negative.
    """
    import numpy as np

    if seed < 0:
        raise UsageError(f"the seed {seed} is negative: give a whole number from 0")
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def _bounds(ends: array[int], shard_bytes: int, num_shards: int | None) -> list[int]:
    """Returns where the shards begin, and the end: cuts at equal parts of the total, no shard empty.

    `ends` tells how many bytes the first 0, 1, ... samples have.
    """
    count, total = len(ends) - 1, ends[-1]
    shards = num_shards or min(count, max(1, -(-total // shard_bytes)))
    if shards > count:
        raise UsageError(f"{shards} shards cannot be made of {count} samples: ask for {count} at most")
    bounds = [0]
    for number in range(1, shards):
        cut = bisect_left(ends, -(-total * number // shards), bounds[-1] + 1)
        bounds.append(min(cut, count - shards + number))
    return [*bounds, count]
