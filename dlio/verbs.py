"""The verbs of the command line that combine others, as functions with the same names and defaults.

`dlio.pack`, `verify`, `stage`, `plan` and `clean` have their own modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.remote import load
from dlio.dataset.schema import Schema
from dlio.errors import UsageError
from dlio.loaders.sampling.mixing import mixing_score
from dlio.loaders.sampling.order import Window
from dlio.look.numbers import stats_of
from dlio.pack.call import pack
from dlio.pack.index import index as index_shards
from dlio.pack.inspect.summary import class_counts, describe, summarise
from dlio.pack.listing.base import Source
from dlio.pack.sets.loose import index_files
from dlio.pack.sources.packed import packed
from dlio.urls import without_credentials


def convert(dataset: str | Path, out: str | Path, **options: Any) -> Manifest:
    """Writes the packed data set in the folder or at the URL `dataset` into `out`, in another format or other shards.

    Keys, labels, class names and order are kept; no image is decoded unless an option changes its pixels.

    Args:
        dataset: the folder or URL of a packed data set.
        out: the folder to write, or an object store's URL.
        **options: those of `dlio.pack`, such as `format`, by default "tfrecord".

    Raises:
        DlioError: as `dlio.pack`.
    """
    return pack(packed(dataset), out, **options)


def index(
    path: Source | str | Path,
    out: str | Path | None = None,
    *,
    format: str | None = None,  # noqa: A002  the field's word
    checksums: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    match: str | None = None,
    schema: Schema | None = None,
    label_offset: int = 0,
    overwrite: bool = False,
    workers: int | None = None,
    started: Callable[[int, int], None] = lambda num_bytes, num_shards: None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> Manifest:
    """Makes files a data set where they lie, without a copy, and returns its manifest.

    With a `format`, these are shards of another tool; see `dlio.pack.index`. Without one, each sample is an image file:
    of class folders, or of a list. The files are listed once, and `out` gets a manifest over them, with their sizes and
    the times of their last change, by which a changed file is found when it is read.

    Args:
        path: the folder of the shards, or of the images; a list of images; or a source of `dlio.sources`. If shards are
            read-only, give a folder of links to them and their indexes.
        out: of images: the folder to write, new or empty; by default next to the images, `photos-index` for `photos`.
        format: of shards: tfrecord, recordio, lmdb, hdf5, webdataset, squashfs, mds, parquet, litdata, array_record, or
            a module's dotted path.
        checksums: of images: reads each file once for its checksum, by which a change is found instead, whatever the
            time of the file. `dlio.stage` needs them.
        on_error: of images: `skip` leaves out missing files and bad entries, and lists them in the manifest.
        match: of shards: a pattern of the names to take, such as `train-*`; by default all, which must then be one set.
        schema: of shards: the schema of all records; by default inferred from the first records.
        label_offset: of shards: what was added to class indices when they were made (1 in TensorFlow's ImageNet files).
        overwrite: replaces the manifest of an earlier call.
        workers: the number of processes; by default one for each usable core.
        started: called once with the size of all shards in bytes, and their number.
        report: called with each shard, or group of images, after it has been indexed.

    Raises:
        SourceError: there is nothing to index, some shards of a set are missing, or a file is missing or empty.
        SchemaError: dlio has no schema for the records, or `label_offset` is given and they have no whole labels.
        CorruptRecordError: a record is damaged or does not follow the schema; the error names file, record and offset.
        StorageError: a folder cannot be read or written, or another process is indexing it.
        MissingPackageError: there are decode-ready records, and this installation cannot read them.
        UsageError: arguments contradict each other, or a folder holds something else.
    """
    general: dict[str, Any] = {"overwrite": overwrite, "workers": workers, "started": started, "report": report}
    if format is None:
        if match is not None or schema is not None or label_offset:
            raise UsageError("--match, --schema and --label-offset are for shards: give their --format, too")
        return index_files(path, out, checksums=checksums, on_error=on_error, **general)
    if out is not None or checksums or on_error != "raise" or not isinstance(path, str | Path):
        raise UsageError(
            "shards are indexed in their folder, with checksums: --out, --checksums and --on-error are for images"
        )
    return index_shards(path, format=format, match=match, schema=schema, label_offset=label_offset, **general)


def info(
    dataset: str | Path | Manifest,
    *,
    shuffle_window: int | None = None,
    batch_size: int = 256,
    stats: bool = False,
    progress: Callable[[int, int], None] = lambda num_samples, num_bytes: None,
) -> dict[str, Any]:
    """Returns what a packed data set holds: the object that `dlio info --json` prints.

    Args:
        dataset: the folder or URL of the data set, or its manifest.
        shuffle_window: adds a score of how well a shuffle of this many shards at a time mixes; 1 is the exact one.
        batch_size: of a global batch.
        stats: adds mean and standard deviation of the channels, heights and widths, and class weights; up to 20,000
            samples are read, spread evenly. They are kept in `.dlio-stats.json` next to the manifest, if possible.
        progress: called with the samples and bytes read for `stats` since the last call.

    Raises:
        ManifestError, CorruptRecordError, StorageError: it cannot be read.
    """
    manifest = load(dataset)
    origin = {name: value for name, value in manifest.origin.items() if name != "refused"}  # counted as skipped
    path = without_credentials(str(manifest.root))
    labels = {"class_names": list(manifest.class_names), "label_offset": manifest.schema.label_offset}
    mixing = {} if shuffle_window is None else {"mixing_score": _mixing(manifest, shuffle_window, batch_size)}
    numbers = {"stats": stats_of(manifest, progress)} if stats else {}
    return (
        describe(manifest) | asdict(summarise(manifest)) | labels | {"origin": origin, "path": path} | mixing | numbers
    )


def _mixing(manifest: Manifest, shuffle_window: int, batch_size: int) -> dict[str, Any]:
    window, sizes = Window(shuffle_window), np.array([shard.num_samples for shard in manifest.shards], np.int64)
    counts = class_counts(manifest)
    return {
        "shuffle_window": shuffle_window,
        "batch_size": batch_size,
        "by_class": None if counts is None else round(mixing_score(window, batch_size, sizes, counts), 4),
        "at_worst": round(mixing_score(window, batch_size, sizes), 4),
    }
