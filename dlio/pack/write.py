"""Writing one shard, in a worker: samples are read, checked, and written aside; then the files get their names."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dlio import formats
from dlio.dataset import sample_table
from dlio.dataset.manifest import CropReady, File, Shard
from dlio.dataset.sample_table import SampleTableBuilder
from dlio.dataset.schema import Sample, Schema
from dlio.errors import LauncherError, SchemaError, SourceError
from dlio.formats import Writer
from dlio.io import files
from dlio.io.digesting_file import CACHED_BYTES, DigestingFile
from dlio.locking.owner import node_id
from dlio.pack.inside import EVERY, Row, unseen
from dlio.pack.inspect.image_header import inspect_image
from dlio.pack.listing.base import Listing, Source
from dlio.pack.pace import NO_LIMITS, Limits, limited
from dlio.pack.recode import KEEP, Recode

ASIDE = ".dlio-packing"  # the folder of unfinished shards; only dlio creates and clears it
NOWHERE = ""  # no process publishes for others
log = logging.getLogger(__name__)
_Image = tuple[bool, bool]  # whether it is crop-ready, and whether it was rewritten for that
_AS_IT_IS = {is_ready: ((is_ready, False),) for is_ready in (False, True)}


@dataclass(frozen=True, slots=True)
class Writing:
    """How shards are written.

    Attributes:
        skip_bad: whether a bad sample is left out and noted, instead of ending the run.
        digest: the algorithm of the files' digests.
        limits: the limits of each worker on reading the source.
        publisher: `here()` of the process that publishes the shards of workers on its machine.
    """

    skip_bad: bool
    digest: str
    limits: Limits = NO_LIMITS
    publisher: str = NOWHERE


@dataclass(frozen=True, slots=True)
class WriteTask:
    """All that a worker needs to write one shard; picklable.

    Attributes:
        name: the shard's name.
        source: the origin of the samples.
        listing: the samples of this shard, in order.
        format: the container's name.
        out: the data set's folder.
        recode: how each image is changed.
        writing: how the shard is written.
        inputs: a digest of the states of the shard's inputs.
        row: where to say how far the shard is.
    """

    name: str
    source: Source
    listing: Listing
    format: str
    out: Path
    recode: Recode
    writing: Writing
    inputs: str
    row: Row | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Written:
    """A shard whose files are complete.

    Attributes:
        shard: its line of the manifest.
        out: the data set's folder.
        aside: the folder of the files; None once they are published.
    """

    shard: Shard
    out: Path
    aside: Path | None


def write_shard(task: WriteTask) -> Written:
    """Writes one shard, and publishes it unless the process that hands out the tasks does (see `dlio.pack.publish`).

    Raises:
        SourceError: an input cannot be packed, and bad ones are not skipped.
        SchemaError: the format cannot hold a value.
        StorageError: the file system refused; nothing is left behind.
    """
    aside = task.out / ASIDE / f"{task.name}.{socket.gethostname()}.{os.getpid()}"
    with files.storage_errors("create", aside):
        aside.mkdir(parents=True)
    is_left = False
    try:
        with limited(task.writing.limits):
            shard = _write(task, aside)
        is_left = task.writing.publisher != NOWHERE and task.writing.publisher == here()
        if not is_left:
            files.publish_all(aside, task.out, [file.name for file in shard.files])
    finally:
        if not is_left:
            shutil.rmtree(aside, ignore_errors=True)
    log.info("%s: %d samples, %d bytes", shard.name, shard.num_samples, shard.num_bytes)
    return Written(shard, task.out, aside if is_left else None)


def here() -> str:
    """Returns a name for this machine, this mount namespace and this user."""
    try:
        return f"{node_id()} {Path('/proc/self/ns/mnt').readlink()} {os.geteuid()}"
    except (OSError, LauncherError):
        return NOWHERE


def _write(task: WriteTask, aside: Path) -> Shard:
    created: dict[str, DigestingFile] = {}

    def open_file(path: Path) -> DigestingFile:
        file = opened.enter_context(closing(DigestingFile(path, task.writing.digest)))
        created[str(path.relative_to(aside))] = file
        return file

    with files.storage_errors("write", aside), ExitStack() as opened:
        writer = formats.import_format(task.format).Writer(aside / task.name, task.listing.schema, open_file)
        with closing(writer):
            written = _write_samples(task, writer)
        open_file(aside / f"{task.name}{sample_table.SUFFIX}").write(written.table.to_bytes())
    entries = _entries(aside, created, task)
    crop_ready = written.crop_ready()
    counted = crop_ready if crop_ready.ready > 0 or task.recode.crop_ready else None
    return Shard(task.name, len(written.table), entries, tuple(written.skipped), (), counted, task.inputs)


@dataclass(slots=True)
class _Written:
    """The rows of the written samples, the keys of skipped samples with reasons, and the number of images by kind."""

    table: SampleTableBuilder
    skipped: list[tuple[str, str]] = field(default_factory=list)
    images: Counter[_Image] = field(default_factory=Counter)

    def crop_ready(self) -> CropReady:
        """Returns the numbers of crop-ready images."""
        ready = sum(count for (ready, _), count in self.images.items() if ready)
        rewritten = sum(count for (_, rewritten), count in self.images.items() if rewritten)
        return CropReady(ready, rewritten, self.images.total() - rewritten)


def _write_samples(task: WriteTask, writer: Writer) -> _Written:
    written, prepared = _Written(SampleTableBuilder(task.listing.schema)), _Preparing.of(task)
    done, sizes = task.row.counts() if task.row else unseen(), np.cumsum(task.listing.num_bytes)
    with task.source.reader(task.listing) as read:
        for index in range(len(task.listing)):
            if not index % EVERY:
                done[:] = index, sizes[index]
            try:
                sample, images = prepared(read(index))
                writer.write(sample)
            except (SourceError, SchemaError) as error:
                if not task.writing.skip_bad:
                    raise
                written.skipped.append((task.listing.keys[index], str(error)))
            else:
                written.table.append(sample)
                for image in images:
                    written.images[image] += 1
    return written


@dataclass(frozen=True, slots=True)
class _Preparing:
    """Checks and recodes each sample before it is written.

    Attributes:
        schema: the schema of the samples.
        image_fields: the fields with images.
        only_image: the only image field, if it holds one image that is packed unchanged; else None.
        task: the shard's task.
    """

    schema: Schema
    image_fields: tuple[str, ...]
    only_image: str | None
    task: WriteTask

    @classmethod
    def of(cls, task: WriteTask) -> _Preparing:
        """Returns the preparation that a task asks for."""
        names, schema = task.listing.image_fields, task.listing.schema
        is_simple = task.recode == KEEP and len(names) == 1 and schema[names[0]].is_scalar
        return cls(schema, names, names[0] if is_simple else None, task)

    def __call__(self, sample: Sample) -> tuple[Sample, Sequence[_Image]]:
        """Returns the sample to write, with its images checked and recoded, and the kind of each image.

        Raises:
            SchemaError: the sample does not follow the schema.
            SourceError: an image is damaged.
        """
        sample = self.schema.check(sample)
        try:
            if self.only_image is None:
                return self._recoded(sample)
            info = inspect_image(sample.fields[self.only_image])
            return Sample(sample.key, sample.fields, info), _AS_IT_IS[info.crop_ready]
        except SourceError as error:
            if self.task.writing.skip_bad:
                raise
            advice = "repair or remove it, or leave such files out with --on-error skip"
            raise SourceError(f"{self.task.source.path}: {sample.key!r}: {error}: {advice}") from None

    def _recoded(self, sample: Sample) -> tuple[Sample, Sequence[_Image]]:
        fields, info, recode = dict(sample.fields), sample.image_info, self.task.recode
        images: list[_Image] = []
        for name in self.image_fields:
            if isinstance(fields[name], list):
                recoded = [recode.apply(image, inspect_image(image)) for image in fields[name]]
                fields[name] = [image for image, _, _ in recoded]
                images += [(info.crop_ready, rewritten) for _, info, rewritten in recoded]
            else:
                fields[name], info, rewritten = recode.apply(fields[name], inspect_image(fields[name]))
                images.append((info.crop_ready, rewritten))
        return Sample(sample.key, fields, info if len(self.image_fields) < 2 else None), images


def _entries(aside: Path, created: dict[str, DigestingFile], task: WriteTask) -> tuple[File, ...]:
    """Returns the shard's files, the records first; files that other libraries wrote are read for their digest."""
    names = sorted(str(path.relative_to(aside)) for path in aside.rglob("*") if path.is_file())
    suffix = formats.import_format(task.format).SUFFIX
    names.sort(key=lambda name: not name.startswith(task.name + suffix))
    entries = []
    for name in names:
        if name in created:
            digest = created[name].digest
        else:  # it is in the page cache, so blocks that fit a core's cache are the fastest
            digest = files.digest_file(aside / name, task.writing.digest, CACHED_BYTES)
        entries.append(File(name, (aside / name).stat().st_size, digest))
    return tuple(entries)
