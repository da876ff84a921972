"""The run of a pack: the shards left to write, the partial manifest, and the end."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from dlio.dataset import manifest
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.errors import SourceError, StorageError, UsageError
from dlio.executors import Pool, map_bounded
from dlio.io import files
from dlio.io.ground import check_ground, check_manifests
from dlio.pack import append, shard_progress
from dlio.pack.inspect.tables import keys_of
from dlio.pack.listing.base import Source
from dlio.pack.listing.joined import Joined
from dlio.pack.listing.keys import Keys
from dlio.pack.overwrite import folder_to_pack_into, next_folder, replace_packed
from dlio.pack.parts.join import begin_files, clear_parts, joined
from dlio.pack.plan import ShardPlan
from dlio.pack.publish import publishing
from dlio.pack.request import Asked, PackPlan, plan_to_write
from dlio.pack.resume import FolderContents, PartialManifest, clear_all_aside, clear_aside, clear_manifests, working_on
from dlio.pack.write import ASIDE, NOWHERE, WriteTask, here, write_shard
from dlio.urls import is_url

log = logging.getLogger(__name__)


def begin(asked: Asked, plan: PackPlan, done: Mapping[str, Shard]) -> list[ShardPlan]:
    """Reports the progress so far, and returns the shards that are left to write."""
    units = plan.units(done)
    for unit in units:
        if unit.name in done:
            _report(asked, unit, done[unit.name])
    asked.started(len(plan.listing), len(units))
    return [unit for unit in units if unit.name not in done]


def _report(asked: Asked, unit: ShardPlan, shard: Shard) -> None:
    """Reports a finished shard; a part counts as a shard whose one file has the part's bytes."""
    if unit.place is not None:
        shard = shard.replace(files=(File(unit.place.file, unit.num_bytes, ""),))
    asked.report(shard)


def _packed_already(plan: PackPlan, held: FolderContents, *, proved: bool) -> Manifest | None:
    """Returns the planned data set if the folder holds it complete and there is nothing to clean up; else None."""
    if held.published is None or held.partial is not None or (held.out / ASIDE).exists():
        return None
    whole = len(held.finished(plan.header, plan.inputs, proved=proved)) == len(plan.shards)
    return held.published if whole and held.is_of(plan.header, plan.inputs) else None


def pack_to_folder(out: Path, asked: Asked) -> Manifest:
    """Packs a source into shards in the folder `out` and returns their manifest; raises as `dlio.pack`."""
    files.new_hash(asked.writing.digest)
    check_ground(out, ASIDE)
    check_manifests(out, manifest.NAME, manifest.PARTIAL_NAME)
    try:
        with asked.engine as pool:
            if pool is None:  # this rank was a worker of rank 0, which is done
                return Manifest.load(out)
            _check_apart(out.resolve(), asked.source)
            plan = plan_to_write(asked)
            if plan.onto is not None and not plan.shards and not (out / ASIDE).exists():
                return plan.onto
            if done := _packed_already(plan, FolderContents.look(out), proved=asked.overwrite):
                return done
            with working_on(out, f"dlio pack into {out}"):
                return _run_plan(plan, FolderContents.look(out), asked, pool)
    finally:
        clear_aside(out)  # of workers, which have ended


def _check_apart(out: Path, source: Source) -> None:
    """Checks that the output is neither the input nor within it, where it would be listed, or copied with it."""
    if isinstance(source, Joined):
        for each in source.sources:
            _check_apart(out, each)
        return
    if is_url(source.path):
        return
    path = Path(source.path).resolve()
    if out == path:
        raise UsageError(f"{out} is also the input: give another folder to write")
    if path in out.parents and source.name in ("imagefolder", "packed"):
        raise UsageError(f"{out} is inside the input: give a folder outside of {path}")


def _run_plan(plan: PackPlan, held: FolderContents, asked: Asked, pool: Pool) -> Manifest:
    """Writes the missing shards and returns the published manifest."""
    if plan.onto is not None and not plan.shards:
        clear_all_aside(held.out)  # of a run that was killed when it had published its manifest
        return plan.onto
    if plan.onto is not None:
        folder = next_folder(held.out, plan.header, plan.inputs)
        whole = append.published(plan.onto, _run(plan, FolderContents.look(folder), asked, pool))
        clear_all_aside(held.out)
        return whole
    folder = folder_to_pack_into(held, plan.header, plan.inputs, plan.listing.keys, asked.overwrite)
    if folder == held.out:
        whole = _run(plan, held, asked, pool, proved=asked.overwrite)
    else:
        whole = replace_packed(held, _run(plan, FolderContents.look(folder), asked, pool))
    clear_all_aside(held.out)
    return whole


def _run(plan: PackPlan, held: FolderContents, asked: Asked, pool: Pool, *, proved: bool = False) -> Manifest:
    out, done = held.out, held.finished(plan.header, plan.inputs, proved=proved)
    begin_files(plan, done, out)
    todo = begin(asked, plan, done)
    if todo or held.published is None:
        _check_space(out, 0 if plan.recode.changes_pixels else sum(shard.num_bytes for shard in todo))
        clear_aside(out)
        clear_manifests(out)
        with PartialManifest(out, replace(plan.header, shards=tuple(done.values()))) as partial:
            done |= write_missing(plan, todo, out, asked, pool, listed=partial.append)
            for shard in joined(plan, done, out, asked.writing.digest):
                partial.append(shard)
                done[shard.name] = shard
    clear_parts(plan, out)
    whole = whole_manifest(plan, done, out)
    if plan.listing.gives_several:
        check_keys(whole)
    whole.save(out)
    (out / manifest.PARTIAL_NAME).unlink(missing_ok=True)
    return whole


def write_missing(
    plan: PackPlan,
    todo: Sequence[ShardPlan],
    out: Path,
    asked: Asked,
    pool: Pool,
    *,
    listed: Callable[[Shard], None] = lambda shard: None,
    url: str = "",
) -> dict[str, Shard]:
    """Writes some of the planned shards, and returns them by name; `listed` is called with each published one."""
    units = {unit.name: unit for unit in todo}
    rows, container = shard_progress.rows([*units]), plan.header.format
    limits, publisher = asked.writing.limits.share(pool.workers), NOWHERE if url else here()
    writing = replace(asked.writing, limits=limits, publisher=publisher)

    def task(unit: ShardPlan) -> WriteTask:
        listing, inputs = plan.listing.take(unit.indices), plan.inputs.get(unit.name, "")
        row = rows.get(unit.name)
        return WriteTask(
            unit.name, plan.source, listing, container, out, plan.recode, writing, inputs, row, url, unit.place
        )

    with publishing(pool, listed) as published:
        written = cast("Iterator[Shard]", map_bounded(published, write_shard, map(task, todo)))
        done = shard_progress.reported(written, lambda shard: _report(asked, units[shard.name], shard))
        return {shard.name: shard for shard in done}


def _check_space(out: Path, num_bytes: int) -> None:
    """Creates the folder `out`, and checks that it has room for `num_bytes`."""
    with files.storage_errors("create", out):
        out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free
    if free < num_bytes:
        kept = (
            ", because the existing data set is kept until the new one is complete" if out.parent.name == ASIDE else ""
        )
        raise StorageError(f"{out} has {free:,} bytes free, {num_bytes:,} are needed{kept}: choose another folder")


def whole_manifest(plan: PackPlan, done: Mapping[str, Shard], root: Path) -> Manifest:
    """Returns the whole manifest; raises SourceError if no sample is left."""
    whole = replace(plan.header, shards=tuple(done[shard.name] for shard in plan.shards), root=root)
    if whole.num_samples == 0:
        reasons = "; ".join(f"{key}: {reason}" for key, reason in whole.skipped[:3])
        raise SourceError(f"every sample was skipped, and nothing was packed: {reasons}")
    return whole


def check_keys(whole: Manifest) -> None:
    """Checks that the samples of rows that gave several have different keys; raises SourceError."""
    found = Keys.of(keys_of(whole))
    if repeated := found.repeated():
        number, _ = whole.locate(repeated[0])
        problem = f"two samples have the key {found[repeated[0]]!r}, the second in {whole.shards[number].name}"
        raise SourceError(f"{whole.root}: {problem}: give each its own key, and pack into another folder")
