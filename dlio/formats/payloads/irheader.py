"""MXNet's image record: a header of 24 bytes, more labels if there are several, then the encoded image.

The layout (mxnet `python/mxnet/recordio.py`, `src/io/image_recordio.h`), little-endian:

    u32 flag | f32 label | u64 id | u64 id2 | flag x f32 | image

    {image: bytes, label: int64}         flag 0; the label is exact up to 2^24, and refused beyond
    {image: bytes, label: float32}       flag 0
    {image: bytes, label: float32[n]}    flag n, label 0, then the n labels

`id` is the record's number within its shard, as im2rec writes the line's number of its list.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from dlio.dataset.schema import Array, Field, Sample, Schema, Value
from dlio.errors import SchemaError
from dlio.formats.payloads import Part

HEADER = struct.Struct("<IfQQ")
_LABELS = re.compile(r"int64|float32|float32\[[1-9][0-9]*\]")
MAX_INTEGER = 1 << 24


def fits(schema: Schema) -> bool:
    """Returns whether samples of `schema` are image records: an encoded image and its labels, so named."""
    types = schema.types()
    return types.keys() == {"image", "label"} and types["image"] == "bytes" and bool(_LABELS.fullmatch(types["label"]))


def image_starts(schema: Schema) -> int:
    """Returns where in a record of this schema the image begins, in bytes."""
    return HEADER.size + 4 * sum(schema["label"].fixed_shape)


def encode(sample: Sample, schema: Schema, number: int) -> list[Part]:
    """Returns the record of a sample, in parts; all but the last have a multiple of 4 bytes.

    Raises:
        SchemaError: the label is an integer that float32 cannot hold exactly.
    """
    label = sample.fields["label"]
    image: bytes = sample.fields["image"]
    if not isinstance(label, int | float):
        return [HEADER.pack(len(label), 0.0, number, 0) + label.astype("<f4").tobytes(), image]
    if type(label) is int and abs(label) > MAX_INTEGER:
        problem = f"{label} is not exact as a float32, which recordio's image header holds: the limit is {MAX_INTEGER}"
        raise SchemaError(f"sample {sample.key!r}, field 'label': {problem}; tfrecord can hold it")
    return [HEADER.pack(0, label, number, 0), image]


def decode(data: bytes | memoryview, schema: Schema) -> Sample:
    """Returns the sample of a record; its key is the header's id as text.

    Raises:
        ValueError: `data` is not an image record, or its labels are not those of the schema.
    """
    if len(data) < HEADER.size:
        raise ValueError(f"the record has {len(data)} bytes, fewer than the {HEADER.size} of an image header")
    flag, label, number, _ = HEADER.unpack_from(data)
    image_starts = HEADER.size + 4 * flag
    if image_starts > len(data):
        raise ValueError(f"the header announces {flag} labels, the record has {len(data)} bytes only")
    labels = np.frombuffer(data, "<f4", flag, HEADER.size) if flag else np.array([label], "<f4")
    fields = {"image": bytes(data[image_starts:]), "label": _label(labels, schema["label"])}
    return Sample(str(number), {name: fields[name] for name in schema})


def _label(labels: Array, kind: Field) -> Value:
    if kind.shape:
        return kind.convert(labels.astype("float32"))
    if len(labels) != 1:
        raise ValueError(f"the record has {len(labels)} labels, expected one")
    label = float(labels[0])
    if kind.dtype == "int64":
        if not label.is_integer():
            raise ValueError(f"the label is {label}, expected a whole number")
        return kind.convert(int(label))
    return label
