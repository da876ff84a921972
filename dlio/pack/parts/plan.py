"""The parts of large shards: a pure function of the exact sizes of all samples, which a source looks up.

A shard is written in parts if it is far larger than usual and its format is a `PartFormat`. The parts follow from the
plan alone, so the shard has the same bytes from any number of workers. A part is a `ShardPlan` with a place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dlio import formats
from dlio.errors import UsageError
from dlio.io import files
from dlio.pack.listing.base import Listing, Numbers, SizedSource, Source, take
from dlio.pack.plan import DEFAULT_SHARD_BYTES, Place, ShardPlan, cut_bounds
from dlio.pack.recode import KEEP, Recode

log = logging.getLogger(__name__)
PART_BYTES = DEFAULT_SHARD_BYTES  # a killed run loses what each worker has of a part
_LEAST_PARTS = 2

Parts = Mapping[str, Sequence[ShardPlan]]


def exact_sizes(
    source: Source, listing: Listing, shards: Sequence[ShardPlan], name: str, recode: Recode
) -> Numbers | None:
    """Returns the exact sizes of all samples if shards of the format `name` can be written in parts; else None.

    Raises:
        UsageError: there is one large shard, whose samples' sizes are not known.
    """
    container = formats.load(name)
    largest = max(shard.num_bytes for shard in shards)
    if largest < _LEAST_PARTS * PART_BYTES or not isinstance(container, formats.PartFormat):
        return None
    reason = _unknown(listing, container, recode)
    log.info("%s: the sizes of %d files are looked up", source.path, len(listing))
    found = source.sizes(listing) if isinstance(source, SizedSource) and not reason else None
    if found is None and len(shards) == 1:
        reason = reason or f"those of {source.path} are not known before they are read"
        advice = f"pack many shards, then `dlio convert OUT ONE --num-shards 1 --format {name}` makes one of them"
        raise UsageError(f"one shard of {largest:,} bytes needs the sizes of all files first, and {reason}: {advice}")
    return found


def _unknown(listing: Listing, container: formats.PartFormat, recode: Recode) -> str:
    if replace(recode, check=KEEP.check) != KEEP:
        return "images that are encoded again have none yet"
    if not container.takes_parts(listing.schema):
        return f"those of the fields {listing.schema} are not known before they are read"
    return ""


def parts_of(shard: ShardPlan, num_bytes: Numbers, name: str) -> list[ShardPlan]:
    """Returns the parts of a shard of the format `name`, given the exact sizes of all samples; none for a small one."""
    container = formats.load(name)
    if not isinstance(container, formats.PartFormat) or shard.num_bytes < _LEAST_PARTS * PART_BYTES:
        return []
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(take(num_bytes, shard.indices))])
    begin, found = container.PLACE_BYTES, []
    for number, (start, stop) in enumerate(pairwise(cut_bounds(ends, PART_BYTES, None))):
        size = int(ends[stop] - ends[start])
        place = Place(f"{shard.name}{container.SUFFIX}", begin, begin + size)
        part = ShardPlan(f"{shard.name}.part-{number:06d}", shard.indices[start:stop], size, place)
        found.append(part)
        begin = -(-place.end // container.PLACE_BYTES) * container.PLACE_BYTES
    return found


def part_states(listing: Listing, parts: Parts) -> dict[str, str]:
    """Returns a digest of each part's place, samples and inputs, by its name: what it must be to be used again."""
    found = {}
    for part in (part for each in parts.values() for part in each):
        columns = [np.asarray(part.indices, np.int64), take(listing.num_bytes, part.indices)]
        columns += [take(listing.versions, part.indices)] if listing.versions is not None else []
        place = f"{part.place}".encode()
        found[part.name] = files.digest_bytes(place + b"".join(column.tobytes() for column in columns))
    return found
