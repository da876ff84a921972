"""The file of a shard that is written in parts: from the first byte to the shard's line of the manifest.

    OUT/.dlio-packing/shard-000000.sqsh         the file, while workers write their parts into it
    OUT/shard-000000.part-000003.samples.npz    and others with this stem: a part that the partial manifest lists

A part is listed when its bytes are on the disk. When all are, the file is completed and read once, for its digest and
for those of the parts; then it gets its name, and the parts' files are removed. A killed run continues from any step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import cast

import numpy as np

from dlio import formats
from dlio.dataset import sample_table
from dlio.dataset.manifest import CropReady, DecodeReady, File, Shard
from dlio.dataset.sample_table import SampleTable
from dlio.errors import StorageError
from dlio.io import files
from dlio.pack.plan import ShardPlan
from dlio.pack.request import PackPlan
from dlio.pack.write import ASIDE

log = logging.getLogger(__name__)


def begin_files(plan: PackPlan, done: dict[str, Shard], out: Path) -> None:
    """Creates the files of unfinished shards in parts; takes parts whose bytes are nowhere out of `done`.

    Raises:
        StorageError: a file cannot be created.
    """
    for name, parts in plan.parts.items():
        if name in done or not parts or (place := parts[-1].place) is None:
            continue
        file, final = out / ASIDE / place.file, out / place.file
        known = [part for part in parts if part.name in done]
        with files.storage_errors("create", file):
            if known and not file.exists():
                with suppress(FileNotFoundError):  # a run was killed when it had published the file
                    final.replace(file)
            if not known or not file.exists():
                for part in known:
                    del done[part.name]
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as new:
                    new.truncate(place.end)
            files.sync_folder(file.parent)


def joined(plan: PackPlan, done: Mapping[str, Shard], out: Path, digest: str) -> Iterator[Shard]:
    """Completes and publishes each shard whose parts are all done, and yields its line of the manifest.

    Raises:
        CorruptRecordError, StorageError: a part is damaged, or the file system refused.
    """
    for shard in plan.shards:
        parts = plan.parts.get(shard.name)
        if parts and shard.name not in done:
            yield _join(plan, shard, [(part, done[part.name]) for part in parts], out, digest)


def _join(plan: PackPlan, shard: ShardPlan, parts: Sequence[tuple[ShardPlan, Shard]], out: Path, digest: str) -> Shard:
    log.info("%s: its %d parts are joined", shard.name, len(parts))
    schema, name = plan.header.schema, f"{shard.name}{sample_table.SUFFIX}"
    container, file = cast(formats.PartFormat, formats.load(plan.header.format)), _file_of(parts[0][0], out)
    with ExitStack() as opened:
        tables = [
            opened.enter_context(closing(SampleTable(_table_of(part, out), schema, line.num_samples)))
            for part, line in parts
        ]
        table = SampleTable.joined(tables, schema)
        columns = {each: np.concatenate([t.field(each) for t in tables]) for each in schema.small}
    written = [container.load_part(out / part.name, part.place.begin) for part, _ in parts if part.place]
    container.join_parts(file, schema, written, columns, table)
    found = _checked_digest(file, digest, written, [part for part, _ in parts], out)
    (file.parent / name).write_bytes(table)
    entries = (File(file.name, file.stat().st_size, found), File(name, len(table), files.digest_bytes(table, digest)))
    files.publish_all(file.parent, out, [entry.name for entry in entries])
    lines = [line for _, line in parts]
    counted = [line.crop_ready for line in lines if line.crop_ready is not None]
    records = [line.decode_ready for line in lines if line.decode_ready is not None]
    return Shard(
        shard.name,
        sum(line.num_samples for line in lines),
        entries,
        tuple(entry for line in lines for entry in line.skipped),
        (),
        sum(counted, CropReady()) if counted else None,
        plan.inputs.get(shard.name, ""),
        decode_ready=sum(records, DecodeReady()) if records else None,
    )


def _checked_digest(
    file: Path, algorithm: str, written: Sequence[formats.WrittenPart], parts: Sequence[ShardPlan], out: Path
) -> str:
    """Returns the digest of a file, which is read once; raises StorageError if parts are not as they were written."""
    whole, at, rest = files.new_hash(algorithm), 0, list(zip(written, parts, strict=True))
    running, damaged = files.new_hash(_algorithm(written[0])), []
    for block in files.read_blocks(file):
        whole.update(block)
        end = at + len(block)
        while rest and rest[0][0].start < end:
            part, planned = rest[0]
            running.update(block[max(part.start - at, 0) : part.stop - at])
            if part.stop > end:
                break
            if f"{_algorithm(part)}:{running.hexdigest()}" != part.digest:
                damaged.append(part)
                _table_of(planned, out).unlink(missing_ok=True)  # so that it is packed again
            running = files.new_hash(_algorithm(part))
            rest.pop(0)
        at = end
    if damaged:
        problem = f"bytes {damaged[0].start:,} to {damaged[0].stop:,} are not those that were written"
        raise StorageError(
            f"{file} is damaged: {problem} ({len(damaged)} of {len(parts)} parts): run the same command again, which "
            "packs these parts again"
        )
    return f"{algorithm}:{whole.hexdigest()}"


def _algorithm(part: formats.WrittenPart) -> str:
    return part.digest.partition(":")[0]


def clear_parts(plan: PackPlan, out: Path) -> None:
    """Removes the files of the parts of published shards; raises StorageError."""
    stems = {part.name for parts in plan.parts.values() for part in parts}
    for path in out.iterdir() if stems else ():
        if ".".join(path.name.split(".")[:2]) in stems:
            with files.storage_errors("remove", path):
                path.unlink()


def _file_of(part: ShardPlan, out: Path) -> Path:
    assert part.place is not None
    return out / ASIDE / part.place.file


def _table_of(part: ShardPlan, out: Path) -> Path:
    return out / f"{part.name}{sample_table.SUFFIX}"
