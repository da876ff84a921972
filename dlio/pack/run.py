"""The run of a pack: its plan, the shards left to write, the partial manifest, and the end."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from dlio import formats
from dlio.dataset import manifest
from dlio.dataset.manifest import Manifest, Shard
from dlio.errors import SourceError, StorageError, UsageError
from dlio.executors import Pool, map_bounded
from dlio.io import files
from dlio.io.open_folder import check_ground, check_manifests
from dlio.locking.claim import alone
from dlio.pack import append, inside
from dlio.pack.listing.base import Listing, Source
from dlio.pack.listing.classes import check_indices, offset_labels, pinned
from dlio.pack.overwrite import folder_to_pack_into, next_folder, replace_packed
from dlio.pack.pace import limited
from dlio.pack.plan import ShardPlan, input_states, plan_digest, plan_shards
from dlio.pack.publish import publishing
from dlio.pack.recode import KEEP, Recode
from dlio.pack.resume import CLAIMS, Held, PartialManifest, clear_all_aside, clear_aside, clear_manifests
from dlio.pack.write import ASIDE, WriteTask, Writing, here, write_shard
from dlio.urls import is_url

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackPlan:
    """The plan of a pack.

    Attributes:
        source: the origin of the samples.
        listing: all samples.
        shards: which samples go into which shard.
        header: the future manifest, without its shards.
        recode: how each image is changed.
        inputs: a digest of the states of each shard's inputs, by the shard's name; empty if they are unknown.
        onto: the data set to which the shards are appended; None if they are one.
    """

    source: Source
    listing: Listing
    shards: list[ShardPlan]
    header: Manifest
    recode: Recode
    inputs: Mapping[str, str]
    onto: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """How a plan is carried out.

    Attributes:
        pool: the workers.
        writing: how they write shards.
        started: called with the numbers of samples and shards, before the first shard is written.
        report: called with each finished shard.
    """

    pool: Pool
    writing: Writing
    started: Callable[[int, int], None]
    report: Callable[[Shard], None]

    def begin(self, plan: PackPlan, done: Mapping[str, Shard]) -> list[ShardPlan]:
        """Tells what is done and how much there is, and returns the shards that are left to write."""
        for shard in done.values():
            self.report(shard)
        self.started(len(plan.listing), len(plan.shards))
        return [shard for shard in plan.shards if shard.name not in done]


@dataclass(frozen=True, slots=True)
class Request:
    """What the plan of a pack depends on, besides the source.

    Attributes:
        format: the container's name.
        shard_bytes: the target size of a shard, in bytes.
        num_shards: the number of shards, instead of `shard_bytes`.
        seed: shuffles the samples.
        label_offset: what is added to class indices.
        recode: how each image is changed.
        classes: the class names, in the order of their indices; by default as the source has them.
        onto: the data set to which new samples are appended; None to make one.
    """

    format: str
    shard_bytes: int | None = None
    num_shards: int | None = None
    seed: int | None = None
    label_offset: int = 0
    recode: Recode = KEEP
    classes: tuple[str, ...] = ()
    onto: Manifest | None = None


def make_plan(source: Source, request: Request) -> PackPlan:
    """Returns the plan of packing `source`; reads only names and sizes, writes nothing.

    Raises:
        SourceError, StorageError, SchemaError, UsageError: as `dlio.pack`.
    """
    listing, recode, onto = source.listing(), request.recode, request.onto
    if onto is not None:
        listing, request = _appended(onto, listing, request)
        if not len(listing):
            return PackPlan(source, listing, [], onto, recode, {}, onto)
    listing = pinned(listing, request.classes) if request.classes else listing
    if listing.left_out:
        log.warning("%s: not packed: %s", source.path, listing.left_out)
    _check_some(source, listing)
    listing = check_indices(offset_labels(listing, request.label_offset))
    _check_some(source, listing)
    if recode != KEEP and not listing.image_fields:
        raise UsageError(f"{source.path} has no encoded images that could be changed: {listing.schema.types()}")
    if request.seed is not None and listing.in_order:
        raise UsageError(f"{source.path}: its rows are read in order: pack without --shuffle; the loaders shuffle")
    recode.check_targets(source.path, listing.schema)
    formats.require(request.format, listing.schema)
    sizes = {"shard_bytes": request.shard_bytes, "num_shards": request.num_shards, "seed": request.seed}
    first = 0 if onto is None else append.first_shard(onto)
    shards = plan_shards(listing.num_bytes, bounds=listing.bounds, first=first, **sizes)
    origin: dict[str, Any] = {
        "source": source.name,
        "path": str(source.path),
        "shuffle": request.seed,
        "num_shards": len(shards),
        "plan": plan_digest(listing, shards),
    }
    if onto is not None:
        append.check_fields(onto, listing.schema)
        origin["first_shard"] = first
    if listing.refused:
        origin["refused"] = [list(entry) for entry in listing.refused]
    if recode != KEEP:
        origin["recode"] = asdict(recode)
    header = Manifest(request.format, listing.schema, (), origin)
    return PackPlan(source, listing, shards, header, recode, input_states(listing, shards), onto)


def _appended(onto: Manifest, listing: Listing, request: Request) -> tuple[Listing, Request]:
    """Returns the samples that a data set does not have, and a request for shards that fit to its own."""
    append.check_recode(onto, request.recode)
    classes = append.class_list(onto, listing.schema.class_names, request.classes)
    offset = append.label_offset(onto, listing.schema, request.label_offset)
    container = append.container(onto, request.format)
    return append.new_samples(onto, listing), replace(request, format=container, classes=classes, label_offset=offset)


def plan_to_write(source: Source, request: Request, writing: Writing) -> PackPlan:
    """Returns the plan as `make_plan`, within the limits of all workers; bad entries are errors unless skipped."""
    with limited(writing.limits):
        plan = make_plan(source, request)
    if not writing.skip_bad:
        plan.listing.check_whole()
    return plan


def _check_some(source: Source, listing: Listing) -> None:
    if not len(listing):
        reasons = "; ".join(reason for _, reason in listing.refused[:3])
        raise SourceError(f"{source.path}: all {len(listing.refused)} entries are refused: {reasons}")


def _packed_already(plan: PackPlan, held: Held, *, proved: bool) -> Manifest | None:
    """Returns the planned data set if the folder holds it complete and there is nothing to clean up; else None."""
    if held.published is None or held.partial is not None or (held.out / ASIDE).exists():
        return None
    whole = len(held.finished(plan.header, plan.inputs, proved=proved)) == len(plan.shards)
    return held.published if whole and held.is_of(plan.header, plan.inputs) else None


def pack_source(
    source: Source,
    out: Path,
    request: Request,
    writing: Writing,
    engine: AbstractContextManager[Pool | None],
    *,
    overwrite: bool,
    started: Callable[[int, int], None],
    report: Callable[[Shard], None],
) -> Manifest:
    """Packs `source` into shards in the folder `out` and returns their manifest; arguments and errors as `dlio.pack`.

    The limits of `writing` are those of all workers together.
    """
    files.new_hash(writing.digest)
    check_ground(out, ASIDE)
    check_manifests(out, manifest.NAME, manifest.PARTIAL_NAME)
    try:
        with engine as pool:
            if pool is None:  # this rank was a worker of rank 0, which is done
                return Manifest.load(out)
            _check_apart(out.resolve(), source)
            plan = plan_to_write(source, request, writing)
            if plan.onto is not None and not plan.shards and not (out / ASIDE).exists():
                return plan.onto
            if done := _packed_already(plan, Held.look(out), proved=overwrite):
                return done
            writing = replace(writing, limits=writing.limits.share(pool.workers), publisher=here())
            with files.storage_errors("create", out):
                (out / ASIDE).mkdir(mode=0o755, parents=True, exist_ok=True)
            check_ground(out, ASIDE)  # from now on no other user can replace it
            with alone(out / ASIDE / CLAIMS, f"dlio pack into {out}"):
                try:
                    return _run_plan(plan, Held.look(out), Running(pool, writing, started, report), overwrite=overwrite)
                finally:
                    clear_aside(out, of_this_process=True)  # an interrupt comes between any two steps
    finally:
        clear_aside(out)


def _check_apart(out: Path, source: Source) -> None:
    """Checks that the output is neither the input nor within it, where it would be listed, or copied with it."""
    if is_url(source.path):
        return
    path = Path(source.path).resolve()
    if out == path:
        raise UsageError(f"{out} is the input too: give another folder to write")
    if path in out.parents and source.name in ("imagefolder", "packed"):
        raise UsageError(f"{out} lies in the input: give a folder outside of {path}")


def _run_plan(plan: PackPlan, held: Held, running: Running, *, overwrite: bool) -> Manifest:
    """Writes the missing shards and returns the published manifest."""
    if plan.onto is not None and not plan.shards:
        clear_all_aside(held.out)  # of a run that was killed when it had published its manifest
        return plan.onto
    if plan.onto is not None:
        folder = next_folder(held.out, plan.header, plan.inputs)
        whole = append.published(plan.onto, _run(plan, Held.look(folder), running))
        clear_all_aside(held.out)
        return whole
    folder = folder_to_pack_into(held, plan.header, plan.inputs, plan.listing.keys, overwrite)
    if folder == held.out:
        whole = _run(plan, held, running, proved=overwrite)
    else:
        whole = replace_packed(held, _run(plan, Held.look(folder), running))
    clear_all_aside(held.out)
    return whole


def _run(plan: PackPlan, held: Held, running: Running, *, proved: bool = False) -> Manifest:
    out, done = held.out, held.finished(plan.header, plan.inputs, proved=proved)
    todo = running.begin(plan, done)
    if todo or held.published is None:
        _check_space(out, 0 if plan.recode.changes_pixels else sum(shard.num_bytes for shard in todo))
        clear_aside(out)
        clear_manifests(out)
        with PartialManifest(out, replace(plan.header, shards=tuple(done.values()))) as partial:
            done |= write_missing(plan, todo, out, running, listed=partial.append)
    whole = manifest_of(plan, done, out)
    whole.save(out)
    (out / manifest.PARTIAL_NAME).unlink(missing_ok=True)
    return whole


def write_missing(
    plan: PackPlan,
    todo: Sequence[ShardPlan],
    out: Path,
    running: Running,
    *,
    listed: Callable[[Shard], None] = lambda shard: None,
    url: str = "",
) -> dict[str, Shard]:
    """Writes some of the planned shards, and returns them by name; `listed` is called with each published one."""
    done = {}
    rows = inside.rows([shard.name for shard in todo])
    tasks = (replace(_task(plan, shard, out, running.writing), row=rows.get(shard.name), url=url) for shard in todo)
    with publishing(running.pool, listed) as pool:
        for shard in cast("Iterator[Shard]", map_bounded(pool, write_shard, tasks)):
            done[shard.name] = shard
            inside.finished(shard.name)
            running.report(shard)
    return done


def _task(plan: PackPlan, shard: ShardPlan, out: Path, writing: Writing) -> WriteTask:
    listing, inputs = plan.listing.take(shard.indices), plan.inputs.get(shard.name, "")
    return WriteTask(shard.name, plan.source, listing, plan.header.format, out, plan.recode, writing, inputs)


def _check_space(out: Path, num_bytes: int) -> None:
    """Creates the folder `out`, and checks that it has room for `num_bytes`."""
    with files.storage_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free
    if free < num_bytes:
        kept = ", as the data set there is kept until the new one is whole" if out.parent.name == ASIDE else ""
        raise StorageError(f"{out} has {free:,} bytes free, {num_bytes:,} are needed{kept}: choose another folder")


def manifest_of(plan: PackPlan, done: Mapping[str, Shard], root: Path) -> Manifest:
    """Returns the whole manifest; raises SourceError if no sample is left."""
    whole = replace(plan.header, shards=tuple(done[shard.name] for shard in plan.shards), root=root)
    if whole.num_samples == 0:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in whole.skipped[:3])
        raise SourceError(f"all {len(whole.skipped)} samples were skipped, nothing is packed: {reasons}")
    return whole
