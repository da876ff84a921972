"""The sizes and classes of a packed data set, from its manifest and its tables of samples; no image is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.manifest import CropReady, DecodeReady, Manifest
from dlio.dataset.sample_table import SampleTable
from dlio.pack.inspect.tables import open_tables

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
_MOST_NUMBERED = 10_000


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """Sizes and classes of a data set.

    Attributes:
        sample_bytes: percentiles of the samples' sizes in bytes, by percentage; empty if no shard has a table.
        shard_bytes: percentiles of the shards' sizes in bytes.
        class_counts: the number of samples of each class, or of each of several labels; classes without names go by
            their numbers, if they are at most 10,000; empty if unknown.
        crop_ready: the numbers of crop-ready images, of those rewritten for that, and of the others.
        decode_ready: the numbers of decode-ready records, and of those made of progressive JPEGs.
    """

    sample_bytes: dict[str, int]
    shard_bytes: dict[str, int]
    class_counts: dict[str, int]
    crop_ready: CropReady
    decode_ready: DecodeReady


def describe(manifest: Manifest) -> dict[str, Any]:
    """Returns the entries at the beginning of every report on a packed data set.

    The bytes of a selection are those of its samples, by the mean size of each shard's records. Its files have more.
    """
    own = sum(shard.num_bytes * shard.num_samples // max(1, shard.num_records) for shard in manifest.shards)
    has_parts = any(shard.part is not None for shard in manifest.shards)
    return {
        "format": manifest.format,
        "schema": manifest.schema.types(),
        "samples": manifest.num_samples,
        "bytes": own if has_parts else manifest.num_bytes,
        **({"bytes_of_files": manifest.num_bytes} if has_parts else {}),
        "shards": len(manifest.shards),
        "classes": len(manifest.class_names),
        "skipped": len(manifest.skipped),
        "content_id": manifest.content_id,
    }


def summarise(manifest: Manifest) -> DatasetSummary:
    """Returns the summary of the data set at `manifest.root`.

    Raises:
        CorruptRecordError: a table of samples is damaged.
        StorageError: it cannot be read.
    """
    sizes: list[NDArray[np.int64]] = []
    counts: NDArray[np.int64] | int = 0
    numbered = Counter[int]()
    for _, table in open_tables(manifest):
        if table is not None:
            sizes.append(table.num_bytes)
            counts = counts + _class_counts(manifest, table)
            numbered.update(_numbered(manifest, table) if len(numbered) <= _MOST_NUMBERED else {})
    names = manifest.class_names if np.ndim(counts) else ()
    if len(numbered) <= _MOST_NUMBERED and not manifest.class_names:
        names, counts = tuple(map(str, sorted(numbered))), np.array([numbered[number] for number in sorted(numbered)])
    return DatasetSummary(
        percentiles(np.concatenate(sizes) if sizes else np.empty(0, np.int64)),
        percentiles(np.array([shard.num_bytes for shard in manifest.shards])),
        dict(zip(names, np.atleast_1d(counts).tolist(), strict=False)),
        sum((shard.crop_ready for shard in manifest.shards if shard.crop_ready is not None), CropReady()),
        manifest.decode_ready,
    )


def class_counts(manifest: Manifest) -> NDArray[np.int64] | None:
    """Returns the number of samples of each class in each shard, int64 of shape (shards, classes); None if unknown.

    Raises:
        CorruptRecordError, StorageError: as `summarise`.
    """
    counts = np.zeros((len(manifest.shards), len(manifest.class_names)), np.int64)
    for row, (_, table) in enumerate(open_tables(manifest)):
        known = 0 if table is None else _class_counts(manifest, table)
        if np.ndim(known) == 0:
            return None
        counts[row] = known
    return counts


def _class_counts(manifest: Manifest, table: SampleTable) -> NDArray[np.int64] | int:
    """Returns the number of samples of each class, int64 of shape (classes,); 0 if labels are not classes."""
    num_classes = len(manifest.class_names)
    kind = manifest.schema.get("label")
    if not num_classes or kind is None or "label" not in manifest.schema.small:
        return 0
    labels = table.field("label")
    if kind.shape == (num_classes,):
        return np.array(np.count_nonzero(labels, axis=0))
    if kind.dtype != "int64" or kind.shape:
        return 0
    known = labels[(labels >= manifest.schema.label_offset) & (labels < manifest.schema.label_offset + num_classes)]
    return np.bincount(known - manifest.schema.label_offset, minlength=num_classes)


def _numbered(manifest: Manifest, table: SampleTable) -> dict[int, int]:
    """Returns the number of samples by class index, for classes without names."""
    if manifest.class_names or str(manifest.schema.get("label")) != "int64":
        return {}
    numbers, counts = np.unique(table.field("label") - manifest.schema.label_offset, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def percentiles(sizes: NDArray[np.int64]) -> dict[str, int]:
    """Returns percentiles of sizes, by percentage; nothing of none."""
    if not len(sizes):
        return {}
    values = np.percentile(sizes, QUANTILES, method="nearest").astype("int64").tolist()
    return {f"{share}%": value for share, value in zip(QUANTILES, values, strict=True)}
