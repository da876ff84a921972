"""A packed data set of any format, whose samples go into other shards unchanged; nothing is decoded.

Keys, labels, class names, label offset and order are kept; so are the shards, unless another size or number is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dlio.dataset.location import folder_of, names_url
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.remote import load
from dlio.dataset.sample_table import small_bytes
from dlio.dataset.schema import Fields, Sample
from dlio.errors import CorruptRecordError, SourceError
from dlio.pack.inspect.tables import keys_of, tables
from dlio.pack.listing.base import Listing, Numbers, read_ahead, take
from dlio.pack.listing.keys import Keys
from dlio.pack.prefetch import Prefetcher
from dlio.urls import shown


def packed(path: str | Path) -> Packed:
    """Returns the samples of the packed data set in the folder or at the URL `path`."""
    return Packed(str(path) if names_url(path) else folder_of(Path(path).absolute()))


open_source = packed


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with a manifest, or its manifest or a shard."""
    return (path / NAME).is_file() or (path.name.startswith((NAME, "shard-")) and folder_of(path) != path)


@dataclass(frozen=True, slots=True)
class Packed:
    """See `packed`."""

    dataset: Path | str = field(repr=False)  # a URL may hold a password
    name: str = "packed"

    @property
    def path(self) -> Path | str:
        """The folder, or the URL without user and password."""
        return shown(self.dataset) if isinstance(self.dataset, str) else self.dataset

    def listing(self) -> Listing:
        """Returns all samples in order, from the shards' tables; all samples of a shard count as equally large."""
        found = load(self.dataset)
        if not found.num_samples:
            raise SourceError(f"{self.path} has no samples: give a data set that has some")
        keys = Keys.of(keys_of(found))
        keys.check_distinct(self.path)
        columns = {
            name: np.concatenate([table.field(name) for _, table in tables(found)]) for name in found.schema.small
        }
        counts = [shard.num_samples for shard in found.shards]
        means = [shard.num_bytes // max(1, shard.num_records) for shard in found.shards]
        return Listing(
            found.schema,
            keys,
            np.repeat(np.array(means, dtype="int64"), counts),
            columns | {"index": np.arange(len(keys))},
            image_fields=_image_fields(found),
            bounds=np.array(found.offsets, dtype="int64"),
            versions=np.full(len(keys), int(found.content_id[:15], 16)),
        )

    def sizes(self, listing: Listing) -> Numbers:
        """Returns the size of each sample's values that are not in the table, in bytes."""
        found = load(self.dataset)
        each = [table.num_bytes - small_bytes(found.schema) for _, table in tables(found)]
        return take(np.concatenate(each), listing.columns["index"])

    def reader(self, listing: Listing) -> Prefetcher[Sample]:
        """Gives a function that reads samples, each compared with its checksum."""
        pool, numbers = ShardPool(load(self.dataset)), listing.columns["index"].tolist()

        def read(index: int) -> Fields:
            try:
                return pool.read(numbers[index]).fields
            except CorruptRecordError as error:
                raise SourceError(str(error)) from error

        return read_ahead(listing, read, pool)


def _image_fields(found: Manifest) -> tuple[str, ...]:
    """Returns the fields with images: of image classification, and of data sets with crop-ready images."""
    if found.schema.is_image_classification:
        return ("image",)
    if not any(shard.crop_ready for shard in found.shards):
        return ()
    return tuple(name for name in ("image", "frames") if name in found.schema and found.schema[name].dtype == "bytes")
