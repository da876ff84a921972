"""The samples of one shard: they are read, checked, changed, and written, small ones in groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

import numpy as np

from dlio.dataset.manifest import CropReady, DecodeReady
from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.sample_table import SampleTableBuilder
from dlio.dataset.schema import DECODE_READY, ImageInfo, Sample, Schema
from dlio.errors import SchemaError, SourceError
from dlio.formats import GroupWriter, Writer
from dlio.pack.inspect.image_header import inspect_image, inspect_images
from dlio.pack.listing.base import GroupReader, Listing, SeveralReader, Source
from dlio.pack.recode import KEEP, Recode
from dlio.pack.shard_progress import EVERY, Counts
from dlio.pack.upright import with_turned_targets

_Kind = tuple[bool, str, bool]
_Image = tuple[_Kind, bool]  # what is counted of its header, and whether it was rewritten to be crop- or decode-ready
_kind: Callable[[ImageInfo], _Kind] = attrgetter("crop_ready", "format", "was_progressive")


def write_samples(
    source: Source, listing: Listing, writer: Writer, recode: Recode, *, skip_bad: bool, done: Counts
) -> WrittenSamples:
    """Writes the samples of a listing, in order, and returns what is known of them; counts them in `done`.

    Raises:
        SourceError: an input cannot be packed, and bad ones are not skipped.
        SchemaError: the format cannot hold a value.
        StorageError: the file system refused.
    """
    written = WrittenSamples.none(listing.schema)
    prepared = Preparing.of(source.path, listing.schema, listing.image_fields, recode, skip_bad)

    def write(index: int, get: Callable[[], Sample | None]) -> bool:
        """Returns False if there is no sample."""
        try:
            if (found := get()) is None:
                return False
            sample, images = prepared(found)
            writer.write(sample)
        except (SourceError, SchemaError) as error:
            if not skip_bad:
                raise
            written.skipped.append((listing.keys[index], str(error)))
        else:
            written.add_one(sample, images)
        return True

    def write_group(index: int, group: SampleGroup) -> None:
        checked = prepared.group(group)
        if checked is not None and grouped is not None and grouped.write_group(checked):
            written.add(checked)
            return
        for number, sample in enumerate(group, index):
            write(number, lambda sample=sample: sample)  # type: ignore[misc]

    with source.reader(listing) as read:
        grouped = writer if isinstance(writer, GroupWriter) and isinstance(read, GroupReader) else None
        several = read if isinstance(read, SeveralReader) else None
        index, noted, sizes = 0, 0, np.cumsum(listing.num_bytes)
        while index < len(listing):
            group = read.group(index) if grouped else None
            if several is not None:
                samples = several.samples(index)
                while write(index, partial(next, samples, None)):
                    pass
                index += 1
            elif group is None:
                write(index, lambda: read(index))  # noqa: B023  called at once
                index += 1
            else:
                write_group(index, group)
                index += len(group)
            if index - noted >= EVERY:
                done[:], noted = (index, sizes[index - 1]), index
    return written


@dataclass(slots=True)
class WrittenSamples:
    """The facts about the written samples.

    Attributes:
        table: their rows.
        skipped: the keys of skipped samples, with reasons.
        images: the number of images by kind.
    """

    table: SampleTableBuilder
    skipped: list[tuple[str, str]] = field(default_factory=list)
    images: Counter[_Image] = field(default_factory=Counter)

    @classmethod
    def none(cls, schema: Schema) -> WrittenSamples:
        """Returns this for no sample yet."""
        return cls(SampleTableBuilder(schema))

    def add_one(self, sample: Sample, images: Sequence[_Image]) -> None:
        """Adds a sample, with the kinds of its images."""
        self.table.append(sample)
        self.images.update(images)

    def add(self, group: SampleGroup) -> None:
        """Adds a group of images that were written unchanged."""
        self.table.extend(group)
        for kind, count in Counter(map(_kind, group.image_infos)).items():
            self.images[kind, False] += count

    def crop_ready(self) -> CropReady:
        """Returns the numbers of crop-ready images."""
        ready = sum(count for ((ready, _, _), _), count in self.images.items() if ready)
        rewritten = sum(count for (_, rewritten), count in self.images.items() if rewritten)
        return CropReady(ready, rewritten, self.images.total() - rewritten)

    def decode_ready(self) -> DecodeReady:
        """Returns the numbers of decode-ready records."""
        counts = [(kind, count) for (kind, _), count in self.images.items()]
        records = sum(count for (_, form, _), count in counts if form == DECODE_READY)
        return DecodeReady(records, sum(count for (_, _, was_progressive), count in counts if was_progressive))


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
            return Sample(sample.key, sample.fields, info), ((_kind(info), False),)
        except SourceError as error:
            if self.skip_bad:
                raise
            advice = "repair or remove it, or leave such files out with --on-error skip"
            raise SourceError(f"{self.path}: {sample.key!r}: {error}: {advice}") from None

    def _recoded(self, sample: Sample) -> tuple[Sample, Sequence[_Image]]:
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
