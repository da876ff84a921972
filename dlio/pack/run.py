"""The run of a pack: what is left to do, the partial manifest, and its end."""

from __future__ import annotations

import json
import logging
import shutil
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from dlio import formats
from dlio.dataset import manifest
from dlio.dataset.manifest import Manifest, Shard
from dlio.errors import SourceError, StorageError, UsageError
from dlio.executors import Pool, map_bounded
from dlio.io import files
from dlio.pack.listing.base import Listing, Source, take
from dlio.pack.overwrite import folder_to_pack_into, replace_packed
from dlio.pack.plan import ShardPlan, plan_shards
from dlio.pack.publish import publishing
from dlio.pack.recode import KEEP, Recode
from dlio.pack.resume import Held, PartialManifest, clear_all_aside, clear_aside, clear_manifests
from dlio.pack.write import ASIDE, ShardTask, Writing, write_shard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackPlan:
    """What a pack will do.

    Attributes:
        source: where the samples come from.
        listing: all of them.
        shards: which samples go into which shard.
        header: the manifest to be, without its shards.
        recode: what becomes of each image.
        inputs: by the name of each shard, a digest of the states of its inputs; empty where these are not known.
    """

    source: Source
    listing: Listing
    shards: list[ShardPlan]
    header: Manifest
    recode: Recode
    inputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Running:
    """What carries out a plan, and who is told.

    Attributes:
        pool: the workers.
        how: how they write shards.
        started: called with the numbers of samples and shards, before the first is written.
        report: called with each shard that is done.
    """

    pool: Pool
    how: Writing
    started: Callable[[int, int], None]
    report: Callable[[Shard], None]


def make_plan(
    source: Source,
    *,
    format: str,  # noqa: A002  the field's word
    label_offset: int = 0,
    seed: int | None = None,
    recode: Recode = KEEP,
    **sizes: Any,
) -> PackPlan:
    """Returns the plan of packing `source`; reads names and sizes only, writes nothing.

    Args:
        source: where the samples come from.
        format: the container's name.
        label_offset: what is added to class indices.
        seed: shuffles the samples.
        recode: what becomes of each image.
        **sizes: `shard_bytes` or `num_shards`, as `plan_shards` takes them.

    Raises:
        SourceError, StorageError, SchemaError, UsageError: as `pack`.
    """
    listing = source.listing()
    if not len(listing):
        reasons = "; ".join(reason for _, reason in listing.refused[:3])
        raise SourceError(f"{source.path}: all {len(listing.refused)} entries are refused: {reasons}")
    listing = _offset_labels(listing, label_offset)
    if recode != KEEP and not listing.image_fields:
        raise UsageError(f"{source.path} has no encoded images that could be changed: {listing.schema.types()}")
    formats.require(format, listing.schema)
    shards = plan_shards(listing.num_bytes, bounds=listing.bounds, seed=seed, **sizes)
    origin: dict[str, Any] = {
        "source": source.name,
        "path": str(source.path),
        "shuffle": seed,
        "num_shards": len(shards),
        "plan": _digest(listing, shards),
    }
    if listing.refused:
        origin["refused"] = [list(entry) for entry in listing.refused]
    if recode != KEEP:
        origin["recode"] = asdict(recode)
    header = Manifest(format, listing.schema, (), origin)
    return PackPlan(source, listing, shards, header, recode, _inputs(listing, shards))


def _inputs(listing: Listing, shards: list[ShardPlan]) -> dict[str, str]:
    if listing.versions is None:
        return {}
    return {shard.name: files.digest_bytes(take(listing.versions, shard.indices).tobytes()) for shard in shards}


def _offset_labels(listing: Listing, offset: int) -> Listing:
    if offset == 0:
        return listing
    if not listing.schema.is_image_classification or "label" not in listing.columns:
        raise UsageError(f"--label-offset needs one whole label for each image, found {listing.schema.types()}")
    from dlio.pack.listing import labels

    schema = replace(listing.schema, label_offset=listing.schema.label_offset + offset)
    moved = {"label": labels.offset(listing.columns["label"], offset)}
    return replace(listing, schema=schema, columns={**listing.columns, **moved})


def _digest(listing: Listing, shards: list[ShardPlan]) -> str:
    """Names the plan: samples, sizes, what is known of them, and their places."""
    running = files.new_hash(files.DEFAULT_DIGEST)
    running.update(json.dumps([listing.schema.types(), [shard.name for shard in shards]]).encode())
    listing.keys.update(running)
    for values in (listing.num_bytes, *listing.columns.values()):
        running.update(values.tobytes())
    for shard in shards:
        numbers = array("q", shard.indices) if isinstance(shard.indices, range) else shard.indices
        running.update(numbers.tobytes())
    return f"{files.DEFAULT_DIGEST}:{running.hexdigest()}"


def packed_already(plan: PackPlan, held: Held) -> Manifest | None:
    """Returns the planned data set if it is in the folder whole, and nothing is left to tidy up there."""
    if held.published is None or held.partial is not None or (held.out / ASIDE).exists():
        return None
    whole = len(held.finished(plan.header, plan.inputs)) == len(plan.shards)
    return held.published if whole and held.is_of(plan.header, plan.inputs) else None


def run_plan(plan: PackPlan, held: Held, running: Running, *, overwrite: bool) -> Manifest:
    """Writes what is not written yet and returns the manifest, published.

    Raises:
        SourceError, SchemaError, StorageError, UsageError: as `pack`.
    """
    folder = folder_to_pack_into(held, plan.header, plan.inputs, overwrite)
    if folder == held.out:
        whole = _run(plan, held, running)
    else:
        whole = replace_packed(held, _run(plan, Held.look(folder), running))
    clear_all_aside(held.out)
    return whole


def _run(plan: PackPlan, held: Held, running: Running) -> Manifest:
    out, done = held.out, held.finished(plan.header, plan.inputs)
    for shard in done.values():
        running.report(shard)
    running.started(len(plan.listing), len(plan.shards))
    todo = [shard for shard in plan.shards if shard.name not in done]
    if todo or held.published is None:
        _check_space(out, 0 if plan.recode.changes_pixels else sum(shard.num_bytes for shard in todo))
        clear_aside(out)
        clear_manifests(out)
        tasks = (_task(plan, shard, out, running.how) for shard in todo)
        with (
            PartialManifest(out, replace(plan.header, shards=tuple(done.values()))) as partial,
            publishing(running.pool, partial.append) as pool,
        ):
            for shard in cast("Iterator[Shard]", map_bounded(pool, write_shard, tasks)):
                done[shard.name] = shard
                running.report(shard)
    return _finish(plan, out, [done[shard.name] for shard in plan.shards])


def _task(plan: PackPlan, shard: ShardPlan, out: Path, how: Writing) -> ShardTask:
    listing, inputs = plan.listing.take(shard.indices), plan.inputs.get(shard.name, "")
    return ShardTask(shard.name, plan.source, listing, plan.header.format, out, plan.recode, how, inputs)


def _check_space(out: Path, num_bytes: int) -> None:
    """Makes the folder `out`, and sure that `num_bytes` fit into it before the first is written."""
    with files.storage_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free
    if free < num_bytes:
        kept = ", as the data set there is kept until the new one is whole" if out.parent.name == ASIDE else ""
        raise StorageError(f"{out} has {free:,} bytes free, {num_bytes:,} are needed{kept}: choose another folder")


def _finish(plan: PackPlan, out: Path, shards: list[Shard]) -> Manifest:
    whole = replace(plan.header, shards=tuple(shards), root=out)
    if whole.num_samples == 0:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in whole.skipped[:3])
        raise SourceError(f"all {len(whole.skipped)} samples were skipped, nothing is packed: {reasons}")
    whole.save(out)
    (out / manifest.PARTIAL_NAME).unlink(missing_ok=True)
    return whole
