"""Which samples each shard contains: a pure function of sizes, a target and a seed; and digests that identify it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dlio.errors import UsageError
from dlio.io import files
from dlio.io.sizes import counted
from dlio.pack.listing.base import Column, Listing, Numbers, take

DEFAULT_SHARD_BYTES = 256 << 20  # 100 MB to 1 GB suits Lustre's storage targets, and a node's cache


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part of a shard lies: from byte `begin` to `end` of the shard's `file`."""

    file: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to write, or a part of one: its name, the numbers of its samples in order, and their size in bytes.

    A part has a `place`; see `dlio.pack.parts`.
    """

    name: str
    indices: range | Numbers
    num_bytes: int
    place: Place | None = None


def shard_name(number: int) -> str:
    """Returns the name of a shard, the stem of its files' names."""
    return f"shard-{number:06d}"


def shard_number(file_name: str) -> int | None:
    """Returns the number of the shard that a file or folder of this name belongs to; None if it belongs to no shard."""
    digits = file_name.partition(".")[0].removeprefix("shard-")
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 20):
        return None
    return int(digits) if file_name.startswith(f"{shard_name(int(digits))}.") else None


def plan_shards(
    num_bytes: Numbers,
    *,
    shard_bytes: int | None = None,
    num_shards: int | None = None,
    bounds: Numbers | None = None,
    seed: int | None = None,
    first: int = 0,
) -> list[ShardPlan]:
    """Returns shards of about equal size that hold each sample exactly once.

    Args:
        num_bytes: int64 of shape (n,), the size of every sample, n > 0.
        shard_bytes: the target size, by default 256 MiB; the number of shards follows from it.
        num_shards: the number of shards, instead of `shard_bytes`.
        bounds: the first sample of each shard, and the number of samples; used if neither size nor number is given.
        seed: shuffles the samples; by default they keep their order.
        first: the number of the first shard.

    Raises:
        UsageError: there are fewer samples than shards, or a size or number is not positive.
    """
    for value in (shard_bytes, num_shards):
        if value is not None and (not isinstance(value, int) or value <= 0):
            raise UsageError(f"the size and the number of shards must be a whole number >= 1, found {value!r}")
    count = len(num_bytes)
    order = range(count) if seed is None else shuffled(count, seed)
    ends = np.zeros(count + 1, dtype="int64")
    np.cumsum(take(num_bytes, order), out=ends[1:])
    if bounds is None or shard_bytes is not None or num_shards is not None:
        cuts = cut_bounds(ends, shard_bytes or DEFAULT_SHARD_BYTES, num_shards)
    else:
        cuts = bounds.tolist()
    sizes = np.diff(ends[cuts]).tolist()
    return [
        ShardPlan(shard_name(first + number), order[start:stop], sizes[number])
        for number, (start, stop) in enumerate(pairwise(cuts))
    ]


def shuffled(count: int, seed: int) -> Numbers:
    """Returns the numbers 0 to `count` - 1 shuffled, int64 of shape (count,), the same with every numpy version.

    numpy guarantees the streams of its bit generators, but not the result of `Generator.permutation`.

    Raises:
        UsageError: the seed is negative.
    """
    if seed < 0:
        raise UsageError(f"the seed {seed} is negative: give a whole number >= 0")
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")


def cut_bounds(ends: Numbers, shard_bytes: int, num_shards: int | None) -> list[int]:
    """Returns the first sample of each shard, and the number of samples: cuts at equal parts of the total size.

    No shard is empty; the number of shards, if not given, follows from `shard_bytes`. `ends` holds the size in bytes of
    the first 0, 1, ... samples.
    """
    count, total = len(ends) - 1, int(ends[-1])
    shards = num_shards or min(count, max(1, -(-total // shard_bytes)))
    if shards > count:
        raise UsageError(f"{counted(count, 'sample')} cannot fill {counted(shards, 'shard')}: ask for at most {count}")
    targets = np.array([-(-total * number // shards) for number in range(1, shards)], dtype="int64")
    bounds = [0]
    for number, cut in enumerate(np.searchsorted(ends, targets).tolist(), start=1):
        bounds.append(min(max(cut, bounds[-1] + 1), count - shards + number))
    return [*bounds, count]


def input_states(listing: Listing, shards: Sequence[ShardPlan]) -> dict[str, str]:
    """Returns a digest of the states of each shard's inputs, by the shard's name; nothing if they are unknown."""
    if listing.versions is None:
        return {}
    return {shard.name: files.digest_bytes(take(listing.versions, shard.indices).tobytes()) for shard in shards}


def plan_digest(listing: Listing, shards: Sequence[ShardPlan]) -> str:
    """Returns a digest of the plan: samples, sizes, columns, and their order in the shards."""
    running = files.new_hash(files.DEFAULT_DIGEST)
    running.update(json.dumps([listing.schema.types(), [shard.name for shard in shards]]).encode())
    listing.keys.update(running)
    for values in (listing.num_bytes, *listing.columns.values()):
        running.update(_with_lengths(values) if values.dtype == object else values.tobytes())
    for shard in shards:
        running.update(np.asarray(shard.indices, dtype="int64").tobytes())
    return f"{files.DEFAULT_DIGEST}:{running.hexdigest()}"


def _with_lengths(values: Column) -> bytes:
    return np.fromiter(map(len, values), "int64", len(values)).tobytes() + b"".join(values)
