"""Batches: samples as numpy arrays, decoded into memory that is reused.

    field                            in a batch of n samples
    image, with a transform          uint8 (n, 3, H, W), or (n, H, W, 3)
    number, or array of fixed shape  an array of the field's dtype, (n, *shape); `label` without the label offset
    array of varying shape           a list of arrays; boxes and their entries have moved with the image
    bytes                            a list of read-only memoryviews
    str, lists of bytes or str       a list
    mask, with a transform           int32 (n, H, W)

The memory belongs to the batch while any array or view of it lives; then later batches reuse it. A view can be read,
compared and used as a dict key like bytes, but not pickled. A view that is kept holds up to 4 MB, since records are
read together: keep `bytes(view)` instead, and send that to other processes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.codecs import decode_ready, decoders, pillow
from dlio.codecs.orientation import AS_STORED, orientation_of, turned_size
from dlio.dataset.reader import viewed
from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError, DataError
from dlio.images.composed import mix_batches, mix_of, moves_of
from dlio.loaders.dataset import Batch, PackedSamples
from dlio.loaders.prefetch.reads import Reads
from dlio.loaders.sampling.order import Indices
from dlio.random_keys import Keys, derive_each
from dlio.targets import IMAGE, LABEL, Targets, move_targets

Damages = dict[int, CorruptRecordError]


def is_pair(schema: Schema) -> bool:
    """Returns whether samples are pairs (image, label), as in image classification."""
    return set(schema) == {IMAGE, LABEL}


def make(
    samples: PackedSamples,
    indices: Sequence[int] | Indices,
    key: int,
    *,
    channels_last: bool = False,
    reads: Reads[Batch] | None = None,
) -> Batch:
    """Returns samples as one batch.

    Args:
        samples: the data set and its transform.
        indices: n samples.
        key: seeds the random choices of the transform: equal keys and samples give equal batches.
        channels_last: return images as (n, H, W, 3).
        reads: the reads of these samples, if they may have begun.

    Raises:
        IndexError, CorruptRecordError, StorageError: as `PackedSamples.read`; CorruptRecordError also for an image
            that cannot be decoded.
    """
    batch = empty(samples, len(indices), channels_last=channels_last)
    reads = reads or samples.column_reads(indices, out_rows(samples, batch, slice(None)))
    fill(samples, batch, 0, indices, key, reads)
    mix(samples, batch, indices, key)
    return batch


def empty(samples: PackedSamples, size: int, *, channels_last: bool = False) -> Batch:
    """Returns a batch of `size` rows with arbitrary content."""
    batch: Batch = {}
    for name, kind in samples.made.items():
        if not kind.is_fixed:
            batch[name] = [None] * size
            continue
        shape = kind.fixed_shape
        if name == IMAGE and samples.transform is not None and not channels_last:
            shape = (3, *samples.output_size)
        batch[name] = samples.memory.empty((size, *shape), kind.dtype)
    return batch


def fill(
    samples: PackedSamples,
    batch: Batch,
    start: int,
    indices: Sequence[int] | Indices,
    key: int,
    reads: Reads[Batch],
) -> list[int]:
    """Writes samples into the rows from `start`; returns the rows whose samples were damaged and replaced.

    Several threads may fill different rows of one batch. `reads` are those of the samples' columns, which may have gone
    to `out_rows`.

    Raises:
        IndexError, CorruptRecordError, StorageError: as `make`.
    """
    with samples.clock.stage("read"):
        columns, damaged = _read_good(samples, indices, reads)
    rows = slice(start, start + len(indices))
    if samples.targets is not None:
        columns, unmoved = _with_moved_targets(samples, samples.targets, columns, indices, _keys(indices, key))
        damaged |= unmoved
    for name, column in batch.items():
        if name == IMAGE and samples.transform is not None:
            with samples.clock.stage("decode"):
                problems = decoders.decode_batch(
                    columns[name], samples.transform, _keys(indices, key), column[rows], upright=samples.upright
                )
                damaged |= {row: samples.left_out(int(indices[row]), problem) for row, problem in problems.items()}
        elif _is_there(column, columns[name]):
            continue
        elif name == LABEL and isinstance(column, np.ndarray):
            column[rows] = _labels(samples, columns[name], column.dtype, indices)
        elif name in samples.schema and samples.schema[name].dtype == "bytes":
            column[rows], broken = _leaving(samples, columns[name], indices)
            damaged |= broken
        else:
            column[rows] = columns[name]
    return [start + row for row in _replace(batch, rows, damaged)]


def mix(samples: PackedSamples, batch: Batch, indices: Sequence[int] | Indices, key: int) -> None:
    """Mixes the samples of a whole batch in place, if the transform does so."""
    if mix_of(samples.transform) is None:
        return
    assert samples.transform is not None
    with samples.clock.stage("decode"):
        images = decoders.channels_last(batch[IMAGE], samples.output_size)
        mix_batches(samples.transform, images, batch[LABEL], _keys(indices, key))


def _keys(indices: Sequence[int] | Indices, key: int) -> Keys:
    """Returns the key of each sample's random choices."""
    return derive_each(key, np.asarray(indices, dtype=np.int64))


def _leaving(samples: PackedSamples, values: Any, indices: Sequence[int] | Indices) -> tuple[Any, Damages]:
    """Returns values that are not decoded here, with JPEGs for decode-ready records, and the damages by row."""
    damaged: Damages = {}
    leaving = list(values)
    for row, value in enumerate(values):
        try:
            leaving[row] = viewed(decode_ready.restored(value))
        except DataError as error:
            damaged[row] = samples.left_out(int(indices[row]), str(error))
    return leaving, damaged


def _labels(samples: PackedSamples, values: Any, dtype: npt.DTypeLike, indices: Sequence[int] | Indices) -> Any:
    """Returns class indices or, where they will be mixed, vectors with a number for each class.

    Raises:
        CorruptRecordError: a label that will be mixed is that of no class.
    """
    if mix_of(samples.transform) is None or not samples.schema[LABEL].is_scalar:
        return samples.class_indices(np.asarray(values, dtype=dtype))
    labels, (count,) = samples.class_indices(np.asarray(values)), samples.made[LABEL].fixed_shape
    for row in np.flatnonzero((labels < 0) | (labels >= count)).tolist():
        raise samples.damage(int(indices[row]), f"its class index {labels[row]} is none of 0 to {count - 1}")
    return labels[:, None] == np.arange(count)


def out_rows(samples: PackedSamples, batch: Batch, rows: slice) -> Batch:
    """Returns arrays that samples can be read into as they are stored: rows of the batch, if it stores them so."""
    if sys.byteorder != "little":
        return {}
    made = () if samples.targets is None else samples.targets.move
    mixes = mix_of(samples.transform) is not None
    made = (*made, LABEL) if samples.schema.label_offset or mixes else made
    out = {name: batch[name][rows] for name, kind in samples.schema.fields if kind.is_fixed and name not in made}
    if samples.transform is not None and IMAGE in out:  # the batch has the results
        kind = samples.schema[IMAGE]
        out[IMAGE] = np.empty((len(out[IMAGE]), *kind.fixed_shape), kind.dtype)
    return out


def _is_there(column: Any, values: Any) -> bool:
    """Returns whether values were read into their rows of the column."""
    return isinstance(column, np.ndarray) and isinstance(values, np.ndarray) and np.may_share_memory(column, values)


def _read_good(samples: PackedSamples, indices: Sequence[int] | Indices, reads: Reads[Batch]) -> tuple[Batch, Damages]:
    """Returns the samples, with a good one instead of each damaged one, and the damages by row."""
    try:
        return reads.take(), {}
    except CorruptRecordError:
        if not samples.skips.limit:
            raise
    damaged: Damages = {}
    for row, index in enumerate(indices):
        try:
            samples.read([index])
        except CorruptRecordError as error:
            samples.skips.note(error)
            damaged[row] = error
    good = next((index for row, index in enumerate(indices) if row not in damaged), None)
    if good is None:
        raise next(iter(damaged.values()))
    return samples.read_columns([good if row in damaged else i for row, i in enumerate(indices)]), damaged


def _with_moved_targets(
    samples: PackedSamples, targets: Targets, columns: Batch, indices: Sequence[int] | Indices, keys: Keys
) -> tuple[Batch, Damages]:
    """Returns the columns with boxes and masks that have moved as the images will, and the damages by row."""
    assert samples.transform is not None
    targets.check_unknown(columns, samples.manifest.root)
    if not targets.move:
        return columns, {}
    sizes, unmeasured = decoders.measure(columns[IMAGE], upright=samples.upright)
    windows = samples.transform.plan(sizes, keys)
    windows = replace(windows, moves=moves_of(samples.transform, keys))
    moved = {name: list(columns[name]) for name in targets.move}
    damaged: Damages = {}
    for row, index in enumerate(indices):
        values = {name: column[row] for name, column in moved.items()}
        try:
            turned = orientation_of(columns[IMAGE][row]) if samples.upright else AS_STORED
            stored = turned, turned_size(tuple(sizes[row].tolist()), turned)
            if row in unmeasured:
                raise DataError(unmeasured[row])
            values |= move_targets(targets, values, windows, row, samples.output_size, stored)
            for name in targets.masks:
                size = samples.output_size
                values[name] = decoders.decode_mask(values[name], sizes[row], windows, row, size, turned)
        except (DataError, *pillow.ERRORS) as error:
            note = samples.damage if row in unmeasured else samples.left_out  # the decoder will note it
            damaged[row] = note(int(index), f"its targets cannot be moved: {error}")
            values |= dict.fromkeys(targets.masks, np.zeros(samples.output_size, np.int32))
        for name, value in values.items():
            moved.setdefault(name, [0] * len(indices))[row] = value
    return columns | moved, damaged


def paired(batch: Batch, schema: Schema) -> Any:
    """Returns (image, label, added fields) if samples have these two fields, else the batch itself."""
    if not is_pair(schema):
        return batch
    return batch[IMAGE], batch[LABEL], *(value for name, value in batch.items() if name not in schema)


def with_bytes(batch: Batch) -> Batch:
    """Returns the batch with bytes instead of views."""
    return {name: list(map(as_bytes, value)) if isinstance(value, list) else value for name, value in batch.items()}


def as_bytes(value: Any) -> Any:
    """Returns bytes instead of a view, anything else unchanged."""
    return bytes(value) if isinstance(value, memoryview) else value


def _replace(batch: Batch, rows: slice, damaged: Mapping[int, CorruptRecordError]) -> list[int]:
    """Copies the first good one of `rows` over the damaged ones; returns the damaged ones.

    Raises:
        CorruptRecordError: all are damaged.
    """
    if not damaged:
        return []
    good = next((row for row in range(rows.stop - rows.start) if row not in damaged), None)
    if good is None:
        raise next(iter(damaged.values()))
    for column in batch.values():
        for row in damaged:
            column[rows.start + row] = column[rows.start + good]
    return list(damaged)
