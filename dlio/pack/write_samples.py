"""One shard: its samples are read, checked, changed, and written, small ones in groups, into files aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import cast

import numpy as np

from dlio import formats
from dlio.dataset.manifest import CropReady, DecodeReady, File, Shard
from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.sample_table import SUFFIX, SampleTableBuilder
from dlio.dataset.schema import DECODE_READY, ImageInfo, Sample, Schema
from dlio.errors import SchemaError, SourceError
from dlio.formats import GroupWriter, PartFormat, TableWriter, Writer
from dlio.io import files
from dlio.io.digesting_file import CACHED_BYTES, DigestingFile
from dlio.pack.inspect.image_header import inspect_image, inspect_images
from dlio.pack.listing.base import GroupReader, Listing, SeveralReader, Source
from dlio.pack.listing.keys import printable
from dlio.pack.recode import KEEP, Recode
from dlio.pack.shard_progress import EVERY, Counts
from dlio.pack.upright import with_turned_targets

_Kind = tuple[bool, str, bool]
_Image = tuple[_Kind, bool]  # what is counted of its header, and whether it was rewritten to be crop- or decode-ready
Prepared = tuple[Sample, Sequence[_Image]]  # a sample to write, and the kinds of its images
_kind: Callable[[ImageInfo], _Kind] = attrgetter("crop_ready", "format", "was_progressive")


def write_samples(source: Source, listing: Listing, shard: OpenShard, done: Counts) -> None:
    """Writes the samples of a listing, in order, into a shard; counts them in `done`.

    Raises:
        SourceError: an input cannot be packed, and bad ones are not skipped.
        SchemaError: the format cannot hold a value.
        StorageError: the file system refused.
    """

    def write(index: int, get: Callable[[], Sample | None]) -> bool:
        """Returns False if there is no sample."""
        try:
            if (sample := get()) is None:
                return False
            shard.write(*shard.prepared(sample))
        except (SourceError, SchemaError) as error:
            if not shard.prepared.skip_bad:
                raise
            shard.skipped.append((listing.keys[index], printable(str(error))))
        return True

    with source.reader(listing) as read:
        grouped = read if isinstance(read, GroupReader) and isinstance(shard.writer, GroupWriter) else None
        several = read if isinstance(read, SeveralReader) else None
        index, noted, sizes = 0, 0, np.cumsum(listing.num_bytes)
        while index < len(listing):
            group = grouped.group(index) if grouped else None
            if several is not None:
                samples = several.samples(index)
                while write(index, partial(next, samples, None)):
                    pass
                index += 1
            elif group is None:
                write(index, lambda: read(index))  # noqa: B023  called at once
                index += 1
            else:
                if not shard.write_group(group):
                    for number, sample in enumerate(group, index):
                        write(number, lambda sample=sample: sample)
                index += len(group)
            if index - noted >= EVERY:
                done[:], noted = (index, sizes[index - 1]), index


class OpenShard:
    """A shard that is being written: its files, which are digested on their way, and what is known of its samples.

    It is used by one thread.

    Attributes:
        aside: the folder of the files.
        prepared: checks each sample before it is written.
        writer: takes the samples.
        table: the rows of the written samples.
        skipped: the keys of samples that were left out, with reasons.
    """

    def __init__(
        self,
        aside: Path,
        name: str,
        container: str,
        prepared: Preparing,
        digest: str,
        part: tuple[Path, range] | None = None,
    ) -> None:
        """Creates the files in the folder `aside`; of a part, its bytes go into a range of the shard's own file."""
        self.aside, self.prepared = aside, prepared
        self.table = SampleTableBuilder(prepared.schema)
        self.skipped: list[tuple[str, str]] = []
        self._images: Counter[_Image] = Counter()
        self._name, self._digest = name, digest
        self._created: dict[str, DigestingFile] = {}
        self._opened = ExitStack()
        self._format = formats.import_format(container)
        with files.closed_on_error(self._opened), files.storage_errors("create", aside / name):
            self.writer = self._writer(aside / name, part)

    def _writer(self, stem: Path, part: tuple[Path, range] | None) -> Writer:
        schema = self.prepared.schema
        if part is None:
            return self._format.Writer(stem, schema, self._open_file)
        return cast(PartFormat, self._format).PartWriter(*part, stem, schema, self._open_file)

    def _open_file(self, path: Path) -> DigestingFile:
        file = self._opened.enter_context(closing(DigestingFile(path, self._digest)))
        self._created[str(path.relative_to(self.aside))] = file
        return file

    def write(self, sample: Sample, images: Sequence[_Image]) -> None:
        """Appends a prepared sample, with the kinds of its images."""
        self.writer.write(sample)
        self.table.append(sample)
        self._images.update(images)

    def write_group(self, group: SampleGroup) -> bool:
        """Appends a group whose images need no change; returns False if each sample must be written alone."""
        checked = self.prepared.group(group)
        if checked is None or not cast(GroupWriter, self.writer).write_group(checked):
            return False
        self.table.extend(checked)
        for kind, count in Counter(map(_kind, checked.image_infos)).items():
            self._images[kind, False] += count
        return True

    def finish(self, inputs: str = "") -> Shard:
        """Adds the table of the samples, closes the files, and returns the shard's line of the manifest."""
        table = self.table.to_bytes()
        if isinstance(self.writer, TableWriter):
            self.writer.keep_table(table)
        self.writer.close()
        self._open_file(self.aside / f"{self._name}{SUFFIX}").write(table)
        self.close()
        crop_ready, decode_ready, recode = self._crop_ready(), self._decode_ready(), self.prepared.recode
        return Shard(
            self._name,
            len(self.table),
            self._entries(),
            tuple(self.skipped),
            crop_ready=crop_ready if crop_ready.ready > 0 or recode.makes_ready else None,
            inputs=inputs,
            decode_ready=decode_ready if decode_ready.records > 0 or recode.decode_ready else None,
        )

    def _crop_ready(self) -> CropReady:
        ready = sum(count for ((ready, _, _), _), count in self._images.items() if ready)
        rewritten = sum(count for (_, rewritten), count in self._images.items() if rewritten)
        return CropReady(ready, rewritten, self._images.total() - rewritten)

    def _decode_ready(self) -> DecodeReady:
        counts = [(kind, count) for (kind, _), count in self._images.items()]
        records = sum(count for (_, form, _), count in counts if form == DECODE_READY)
        return DecodeReady(records, sum(count for (_, _, was_progressive), count in counts if was_progressive))

    def _entries(self) -> tuple[File, ...]:
        """Returns the files, the records first; those that other libraries wrote are read for their digest."""
        aside, created, digest = self.aside, self._created, self._digest
        names = sorted(str(path.relative_to(aside)) for path in aside.rglob("*") if path.is_file())
        names.sort(key=lambda name: not name.startswith(self._name + self._format.SUFFIX))
        return tuple(
            File(
                name,
                (aside / name).stat().st_size,
                # it is in the page cache, so blocks that fit a core's cache are the fastest
                created[name].digest if name in created else files.digest_file(aside / name, digest, CACHED_BYTES),
            )
            for name in names
        )

    def close(self) -> None:
        """Closes the files; may be called twice."""
        with self._opened:
            self.writer.close()


@dataclass(frozen=True, slots=True)
class Preparing:
    """Checks and recodes each sample before it is written.

    Attributes:
        path: the origin of the samples, for messages.
        schema: the schema of the samples.
        image_fields: the fields with images.
        only_image: the only image field, if it holds one image that is packed unchanged; else None.
        recode: how each image is changed.
        skip_bad: whether bad samples are skipped.
    """

    path: object
    schema: Schema
    image_fields: tuple[str, ...]
    only_image: str | None
    recode: Recode
    skip_bad: bool

    @classmethod
    def of(cls, path: object, schema: Schema, names: tuple[str, ...], recode: Recode, skip_bad: bool) -> Preparing:
        """Returns the preparation of a shard's samples, whose fields `names` hold images."""
        is_simple = recode == KEEP and len(names) == 1 and schema[names[0]].is_scalar
        return cls(path, schema, names, names[0] if is_simple else None, recode, skip_bad)

    def group(self, group: SampleGroup) -> SampleGroup | None:
        """Returns a group to write, with the headers of its images; None if each sample must be prepared alone."""
        if self.only_image is None or not group.follows(self.schema):
            return None
        try:
            return replace(group, image_infos=inspect_images(group.pieces(self.only_image)))
        except SourceError:
            return None

    def __call__(self, sample: Sample) -> Prepared:
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
            return Sample(sample.key, sample.fields, info), ((_kind(info), False),)
        except SourceError as error:
            if self.skip_bad:
                raise
            advice = "repair or remove it, or leave such files out with --on-error skip"
            raise SourceError(f"{self.path}: {sample.key!r}: {error}: {advice}") from None

    def _recoded(self, sample: Sample) -> Prepared:
        fields, info, recode = dict(sample.fields), sample.image_info, self.recode
        images: list[_Image] = []
        fields = {name: recode.restored(value) for name, value in fields.items()} if recode.jpeg else fields
        fields = with_turned_targets(fields, self.schema) if recode.upright else fields
        for name in self.image_fields:
            if isinstance(fields[name], list):
                recoded = [recode.apply(image, inspect_image(image)) for image in fields[name]]
                fields[name] = [image for image, _, _ in recoded]
                images += [(_kind(info), rewritten) for _, info, rewritten in recoded]
            else:
                fields[name], info, rewritten = recode.apply(fields[name], inspect_image(fields[name]))
                images.append((_kind(info), rewritten))
        return Sample(sample.key, fields, info if len(self.image_fields) < 2 else None), images
