"""Writing one shard, in a worker: samples are read, checked, written aside, and published under their final names."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from dlio import files, formats, sample_table
from dlio.errors import SchemaError, SourceError
from dlio.files import DigestingFile
from dlio.formats import Writer
from dlio.manifest import File, Shard
from dlio.pack.inspect import inspect_image
from dlio.pack.listing import Listing, Source
from dlio.sample import Sample
from dlio.sample_table import SampleTableBuilder

ASIDE = ".dlio-packing"  # the folder of shards that are being written; dlio alone makes it, and clears it
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardTask:
    """All that a worker needs for one shard; picklable.

    Attributes:
        name: the shard's name.
        source: what the samples are read from.
        listing: the samples of this shard, in order.
        format: the container's name.
        out: the data set's folder.
        skip_bad: whether a bad sample is left out and noted, instead of ending the run.
        digest: the algorithm of the files' digests.
    """

    name: str
    source: Source
    listing: Listing
    format: str
    out: Path
    skip_bad: bool
    digest: str

    def __str__(self) -> str:
        return self.name


def write_shard(task: ShardTask) -> Shard:
    """Writes and publishes one shard, and returns its line of the manifest.

    Raises:
        SourceError: an input cannot be packed, and bad ones are not skipped.
        SchemaError: the format cannot hold a value.
        StorageError: the file system refused; nothing is left behind.
    """
    aside = task.out / ASIDE / f"{task.name}.{socket.gethostname()}.{os.getpid()}"
    with files.storage_errors("create", aside):
        aside.mkdir(parents=True)
    try:
        shard = _write(task, aside)
        files.publish_all(aside, task.out, [file.name for file in shard.files])
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    log.info("%s: %d samples, %d bytes", shard.name, shard.num_samples, shard.num_bytes)
    return shard


def _write(task: ShardTask, aside: Path) -> Shard:
    created: dict[str, DigestingFile] = {}

    def open_file(path: Path) -> DigestingFile:
        file = opened.enter_context(closing(DigestingFile(path, task.digest)))
        created[str(path.relative_to(aside))] = file
        return file

    with files.storage_errors("write", aside), ExitStack() as opened:
        writer = formats.load(task.format).Writer(aside / task.name, task.listing.schema, open_file)
        with closing(writer):
            table, skipped = _write_samples(task, writer)
        open_file(aside / f"{task.name}{sample_table.SUFFIX}").write(table.to_bytes())
    return Shard(task.name, len(table), _entries(aside, created, task), tuple(skipped))


def _write_samples(task: ShardTask, writer: Writer) -> tuple[SampleTableBuilder, list[tuple[str, str]]]:
    """Returns the rows of the samples written, and the key of each that was skipped with the reason."""
    table = SampleTableBuilder(task.listing.schema)
    skipped: list[tuple[str, str]] = []
    with task.source.reader(task.listing) as read:
        for index in range(len(task.listing)):
            try:
                sample = _checked(task, read(index))
                writer.write(sample)
            except (SourceError, SchemaError) as error:
                if not task.skip_bad:
                    raise
                skipped.append((task.listing.keys[index], str(error)))
            else:
                table.append(sample)
    return table, skipped


def _checked(task: ShardTask, sample: Sample) -> Sample:
    sample = task.listing.schema.check(sample)
    infos = []
    for name in task.listing.image_fields:
        value = sample.fields[name]
        for image in value if isinstance(value, list) else [value]:
            try:
                infos.append(inspect_image(image))
            except SourceError as error:
                advice = "repair or remove it, or leave such files out with --on-error skip"
                raise SourceError(f"{task.source.path}: {sample.key!r}: {error}: {advice}") from None
    return Sample(sample.key, sample.fields, infos[0] if len(infos) == 1 else None)


def _entries(aside: Path, created: dict[str, DigestingFile], task: ShardTask) -> tuple[File, ...]:
    """Returns the shard's files, the one with the records first, those of other libraries digested by reading."""
    names = sorted(str(path.relative_to(aside)) for path in aside.rglob("*") if path.is_file())
    suffix = formats.load(task.format).SUFFIX
    names.sort(key=lambda name: not name.startswith(task.name + suffix))
    entries = []
    for name in names:
        digest = created[name].digest if name in created else files.digest_file(aside / name, task.digest)
        entries.append(File(name, (aside / name).stat().st_size, digest))
    return tuple(entries)
