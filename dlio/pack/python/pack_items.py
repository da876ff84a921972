"""`dlio.pack_items`: a function, called for each item by the workers of any engine, makes the samples of a data set.

Each shard has the samples of a part of the items, in their order. How many shards there are follows from a few items,
which the workers try first, or is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from dlio.dataset import manifest, sample_table
from dlio.dataset.location import names_url
from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import load
from dlio.dataset.schema import Field, Schema
from dlio.errors import SchemaError, SourceError, UsageError
from dlio.executors import Pool, map_bounded, open_engine
from dlio.pack.call import pack
from dlio.pack.index._infer import MAX_BYTES, MAX_RECORDS, common_field
from dlio.pack.listing.base import Listing
from dlio.pack.listing.classes import read_classes
from dlio.pack.plan import DEFAULT_SHARD_BYTES
from dlio.pack.python.fields import Given, inferred, kinds, schema_of
from dlio.pack.python.items import SOURCE, Function, Items
from dlio.pack.recode import KEEP

_TRIED = 8  # items from whose samples the number of shards follows


def pack_items(
    function: Function,
    items: Iterable[Any],
    out: str | PurePath,
    *,
    schema: Schema | Mapping[str, str] | None = None,
    classes: str | PurePath | Sequence[str] | None = None,
    encode: Mapping[str, str] | None = None,
    quality: int = KEEP.quality,
    shard_size: int | None = None,
    num_shards: int | None = None,
    workers: int | None = None,
    engine: str | Pool | None = "processes",
    **options: Any,
) -> Manifest:
    """Packs the samples that `function` returns or yields for each item, and returns their manifest.

    The samples are in the order of the items, whatever the engine and the number of workers. If a run was stopped, the
    same call continues with the shards that are missing, and a finished one does nothing. If the function's own code
    has changed, unfinished data sets are made again, and finished ones only with `overwrite=True`. Changes of what the
    function calls go unnoticed.

    Args:
        function: called with an item, in a worker. It returns a sample, a mapping of fields or a `dlio.Sample`; or it
            yields, or returns in a list, any number of them; or None. A mapping may have the sample's key as `__key__`.
            By default the key is the item, if all items are text or paths, else its number; samples that are yielded
            have their number after it. Engines pickle functions: define it at the top of a module or script.
        items: what the function is called with, each small and picklable, such as paths, numbers or tuples.
        out: the folder or URL to write, as for `dlio.pack`.
        schema: names and types of the fields, such as `{"image": "bytes", "boxes": "float32[?,4]"}`; by default as the
            first samples of a few items have them, where a dimension that differs varies.
        classes: the class names in the order of their indices, as for `dlio.pack`.
        encode: the fields whose arrays or Pillow images become files, such as `{"image": "jpeg", "mask": "png"}`.
        quality: of JPEGs.
        shard_size: the target size of a shard, in bytes, by default 256 MiB; the samples of an item are in one shard.
        num_shards: the number of shards, instead of `shard_size`.
        workers, engine: as for `dlio.pack`.
        **options: others of `dlio.pack`, such as `format`, `shuffle`, which shuffles items, `recode`, `overwrite`, and
            `on_error="skip"`, which leaves out items whose function fails.

    Raises:
        SourceError: the function failed, or gave a sample that cannot be packed; names the item.
        SchemaError: samples do not fit the schema, or the format cannot hold them.
        StorageError, UsageError: as `dlio.pack`.
    """
    if "append" in options:
        raise UsageError(
            "append compares keys before samples are made: pack into another folder, and combine both with dlio.merge"
        )
    given, listed = Given(encode or {}, quality), list(items)
    if not listed:
        raise UsageError("there are no items to pack")
    own = schema_of(schema, names := read_classes(classes))  # type: ignore[arg-type]
    held = None if options.get("overwrite") or names_url(out) else _begun(out)
    with open_engine(engine, workers) if isinstance(engine, str) else nullcontext(engine) as pool:
        if pool is None:  # this rank was a worker of rank 0, which is done
            return load(str(out))
        make = partial(Items, function, tuple(listed), given, shard_size)
        _check_sent(make(Schema(())), pool)
        if held is not None:
            own = own or schema_of(held.schema, names)
            num_shards = num_shards or min(len(listed), held.origin["num_shards"])
        if own is None or num_shards is None:
            most = shard_size or DEFAULT_SHARD_BYTES
            tried = _try(make(Schema(())), pool, options.get("on_error") == "skip")
            own = own or inferred(_merged([each.fields for each in tried]), names)
            num_shards = num_shards or _num_shards(tried, len(listed), most)
        return pack(make(own), str(out), num_shards=num_shards, engine=pool, **options)


@dataclass(frozen=True, slots=True)
class _Tried:
    """What is known of an item: the types of its first samples, and the bytes of all, None for too many to count."""

    fields: Sequence[Mapping[str, Field]]
    num_bytes: int | None


def _check_sent(source: Items, pool: Pool) -> None:
    """Raises UsageError if the engine cannot send the function to a worker."""
    try:
        pool.executor.submit(_received, source).result()
    except pool.died:
        raise
    except Exception as error:
        advice = "define it at the top of a module or script, not as a lambda or within a function"
        raise UsageError(f"{source.path} cannot be sent to a worker: {error}: {advice}") from error


def _received(source: Items) -> None:
    """Does nothing, in a worker."""


def _try(source: Items, pool: Pool, skips: bool) -> list[_Tried]:
    """Returns what a few items hold, spread evenly."""
    listing, last = source.listing(), len(source.items) - 1
    numbers = sorted({number * last // (_TRIED - 1) for number in range(_TRIED)})
    tasks = [_Task(source, listing.take(range(number, number + 1))) for number in numbers]
    found = dict(map_bounded(pool, partial(_tried, skips), tasks))
    return [found[task.listing.keys[0]] for task in tasks]


@dataclass(frozen=True, slots=True)
class _Task:
    source: Items
    listing: Listing

    def __str__(self) -> str:
        return f"the item {self.listing.keys[0]}"


def _tried(skips: bool, task: _Task) -> tuple[str, _Tried]:
    """Returns what is known of an item, with its key; samples beyond 64 MiB are not made."""
    types: list[Mapping[str, Field]] = []
    num_bytes: int | None = 0
    with task.source.reader(task.listing) as read:
        try:
            for sample in read.samples(0):
                own = kinds(sample)
                if len(types) < MAX_RECORDS:
                    types.append(own)
                num_bytes = (num_bytes or 0) + sum(map(_size, sample.fields.values()))
                if num_bytes > MAX_BYTES:
                    num_bytes = None
                    break
        except (SourceError, SchemaError):
            if not skips:
                raise
    return task.listing.keys[0], _Tried(types, num_bytes)


def _size(value: object) -> int:
    if isinstance(value, bytes | bytearray | memoryview | str):
        return len(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], str | bytes):
        return sum(map(len, value))
    array = np.asarray(value)
    return array.nbytes if array.ndim else sample_table.NUMBER_BYTES


def _num_shards(tried: Sequence[_Tried], count: int, shard_bytes: int) -> int:
    """Returns how many shards the samples of `count` items make."""
    sizes = [shard_bytes if each.num_bytes is None else each.num_bytes for each in tried]
    total = sum(sizes) * count // len(sizes)
    return min(count, max(1, -(-total // shard_bytes)))


def _merged(found: Sequence[Sequence[Mapping[str, Field]]]) -> dict[str, Field]:
    """Returns the fields of samples; a dimension that differs varies.

    Raises:
        SchemaError: there are no samples, or they have different fields.
    """
    types = [each for some in found for each in some]
    if not types:
        raise SchemaError("the items that were tried have no samples: give the fields by schema=")
    for each in types:
        if each.keys() != types[0].keys():
            raise SchemaError(
                f"samples have the fields {sorted(types[0])} and {sorted(each)}: give all samples the same fields"
            )
    return {name: common_field(name, [each[name] for each in types]) for name in types[0]}


def _begun(out: str | PurePath) -> Manifest | None:
    """Returns the data set that an earlier call has packed, or begun, so that the same plan is made again."""
    folder = Path(out)
    found = Manifest.load(folder) if (folder / manifest.NAME).exists() else manifest.read_partial(folder)
    return found if found is not None and found.origin.get("source") == SOURCE else None
