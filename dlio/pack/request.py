"""The request of a pack, and the plan that follows from it and from the names and sizes of the samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace

from dlio import formats
from dlio.dataset.manifest import Manifest, Shard
from dlio.errors import SourceError, UsageError
from dlio.executors import Pool
from dlio.pack import append
from dlio.pack.listing.base import Listing, Source
from dlio.pack.listing.classes import check_indices, offset_labels, pinned, without_rows
from dlio.pack.listing.keys import printable
from dlio.pack.pace import limited
from dlio.pack.parts.plan import Parts, exact_sizes, part_states, parts_of
from dlio.pack.plan import ShardPlan, input_states, plan_digest, plan_shards
from dlio.pack.recode import KEEP, Recode
from dlio.pack.write import Writing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackRequest:
    """What the plan of a pack depends on, in addition to the source: arguments of `dlio.pack`.

    New samples are appended to the data set `onto`; None to make one.
    """

    format: str
    shard_bytes: int | None = None
    num_shards: int | None = None
    seed: int | None = None
    label_offset: int = 0
    recode: Recode = KEEP
    classes: tuple[str, ...] = ()
    onto: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of `dlio.pack` asks for; `overwrite`, `started` and `report` are its arguments.

    The limits of `writing` are those of all workers together.
    """

    source: Source
    request: PackRequest
    writing: Writing
    engine: AbstractContextManager[Pool | None]
    overwrite: bool
    started: Callable[[int, int], None]
    report: Callable[[Shard], None]


@dataclass(frozen=True, slots=True)
class PackPlan:
    """The plan of a pack.

    Attributes:
        shards: which samples go into which shard.
        header: the future manifest, without its shards.
        inputs: a digest of the states of each shard's inputs, by the shard's name; empty if they are unknown. For a
            part, a digest of all that it depends on.
        parts: the parts of each large shard that all workers write, by the shard's name.
        onto: the data set to which the shards are appended; None if they are one.
    """

    source: Source
    listing: Listing
    shards: list[ShardPlan]
    header: Manifest
    recode: Recode
    inputs: Mapping[str, str]
    parts: Parts = field(default_factory=dict)
    onto: Manifest | None = None

    def units(self, done: Container[str]) -> list[ShardPlan]:
        """Returns what workers write: shards, and the parts of large ones that are not `done` yet."""
        parts = self.parts
        return [unit for each in self.shards for unit in (each.name not in done and parts.get(each.name)) or [each]]


def make_plan(source: Source, request: PackRequest) -> PackPlan:
    """Returns the plan of packing `source`; reads only names and sizes, writes nothing; raises as `dlio.pack`."""
    listing, recode, onto = source.listing(), request.recode, request.onto
    if onto is not None:
        listing, request = _appended(onto, listing, request)
        if not len(listing):
            return PackPlan(source, listing, [], onto, recode, {}, onto=onto)
    listing = pinned(listing, request.classes) if request.classes else listing
    if listing.left_out:
        log.warning("%s: not packed: %s", source.path, listing.left_out)
    _check_some(source, listing)
    listing = check_indices(offset_labels(listing, request.label_offset))
    _check_some(source, listing)
    if recode != KEEP and not listing.image_fields and not recode.jpeg:
        raise UsageError(f"{source.path} has no encoded images that could be changed: {listing.schema}")
    if request.seed is not None and listing.in_order:
        raise UsageError(f"{source.path}: its rows are read in order: pack without --shuffle; the loaders shuffle")
    recode.check_targets(source.path, listing.schema)
    listing = _legal(listing, request.format)
    _check_some(source, listing)
    sizes = {"shard_bytes": request.shard_bytes, "num_shards": request.num_shards, "seed": request.seed}
    first = 0 if onto is None else append.first_shard(onto)
    shards = plan_shards(listing.num_bytes, bounds=listing.bounds, first=first, **sizes)
    parts: Parts = {}
    if (exact := exact_sizes(source, listing, shards, request.format, recode)) is not None:
        listing = replace(listing, num_bytes=exact)
        shards = plan_shards(exact, bounds=listing.bounds, first=first, **sizes)
        parts = {shard.name: parts_of(shard, exact, request.format) for shard in shards}
    if onto is not None:
        append.check_fields(onto, listing.schema)
    header = Manifest(request.format, listing.schema, (), _origin(source, listing, shards, request))
    inputs = input_states(listing, shards) | part_states(listing, parts)
    return PackPlan(source, listing, shards, header, recode, inputs, parts, onto)


def _legal(listing: Listing, name: str) -> Listing:
    """Returns the listing without keys that the format `name` refuses; raises SchemaError if it refuses the fields."""
    container = formats.require(name, listing.schema)
    if not isinstance(container, formats.PathFormat):
        return listing
    refused = container.refused_keys(listing.schema, listing.keys)
    advice = "rename the file, or use tfrecord, which holds any key"
    return without_rows(listing, {row: f"{name} cannot hold this key: {why}: {advice}" for row, why in refused.items()})


def _origin(source: Source, listing: Listing, shards: list[ShardPlan], request: PackRequest) -> dict[str, object]:
    """Returns what the manifest says of how the data set was made."""
    origin: dict[str, object] = {
        "source": source.name,
        "path": printable(str(source.path)),
        "shuffle": request.seed,
        "num_shards": len(shards),
        "plan": plan_digest(listing, shards),
    }
    if request.onto is not None:
        origin["first_shard"] = append.first_shard(request.onto)
    if listing.refused:
        origin["refused"] = [list(map(printable, entry)) for entry in listing.refused]
    if request.recode != KEEP:
        origin["recode"] = asdict(request.recode)
    return origin


def _appended(onto: Manifest, listing: Listing, request: PackRequest) -> tuple[Listing, PackRequest]:
    """Returns the samples that a data set does not have, and a request for shards that fit to its own."""
    append.check_recode(onto, request.recode)
    classes = append.class_list(onto, listing.schema.class_names, request.classes)
    offset = append.label_offset(onto, listing.schema, request.label_offset)
    return append.new_samples(onto, listing), replace(request, classes=classes, label_offset=offset)


def plan_to_write(asked: Asked) -> PackPlan:
    """Returns the plan as `make_plan`, within the limits of all workers; bad entries are errors unless skipped."""
    with limited(asked.writing.limits):
        plan = make_plan(asked.source, asked.request)
    if not asked.writing.skip_bad:
        plan.listing.check_whole()
    return plan


def _check_some(source: Source, listing: Listing) -> None:
    if not len(listing):
        reasons = "; ".join(reason for _, reason in listing.refused[:3])
        raise SourceError(f"{source.path}: every entry is refused: {reasons}")
