"""Caffe's `Datum`: one image and its class index (caffe `src/caffe/proto/caffe.proto`, `util/io.cpp`).

    1 channels  2 height  3 width  4 data  5 label, int32  6 float_data  7 encoded

    {image: bytes, label: int64}            the encoded file in `data`, `encoded` true, no dimensions
    {image: uint8[h,w,c], label: int64}     C x H x W in `data`, dimensions set, `encoded` false; with three channels
                                            RGB becomes BGR, as OpenCV and so Caffe have it; h, w, c fixed or varying

These are the forms of `convert_imageset` with and without `--encoded`. A Datum has room for one whole label only, and
`float_data` is for features: a vector of labels, like any other schema, is not a Datum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import SchemaError
from dlio.formats import Spans
from dlio.formats.payloads import Part
from dlio.formats.payloads.messages import parse
from dlio.formats.payloads.wire import delimited, varint, varint_bytes
from dlio.io.random_access import Numbers, RandomAccessFile

Rows = npt.NDArray[np.uint8]

_LARGEST = 1 << 30  # of an image in a group; protobuf's messages end at twice that
_DIMENSIONS = ("channels", "height", "width")


def holds(schema: Schema) -> bool:
    """Returns whether samples of this schema are what a Datum is for."""
    if set(schema) != {"image", "label"} or str(schema["label"]) != "int64":
        return False
    image = schema["image"]
    return str(image) == "bytes" or (image.dtype == "uint8" and len(image.shape) == 3)


def spans(file: RandomAccessFile, bounds: tuple[Numbers, Numbers], sizes: Numbers, image: Field) -> Spans | None:
    """Returns the offsets of the images in Datums between `bounds`, as this module and Caffe write them.

    None for arrays of varying shape.
    """
    gaps = 1 + varint_bytes(sizes)
    if not image.is_number:
        return Spans(file, *bounds, gaps)
    if not image.is_fixed:
        return None
    height, width, channels = image.fixed_shape

    def order(rows: Rows) -> Rows:
        return _pixels(rows.reshape(-1, channels, height, width)).reshape(rows.shape)

    return Spans(file, *bounds, gaps + len(_dimensions((channels, height, width))), order=order)


def encoder(schema: Schema) -> Callable[[Sample], list[Part]]:
    """Returns a function from a sample to its Datum, in parts.

    It raises SchemaError if a label does not fit an int32.
    """
    return partial(_encode, encoded=not schema["image"].is_number)


def _encode(sample: Sample, *, encoded: bool) -> list[Part]:
    image, label = sample.fields["image"], sample.fields["label"]
    if not -(2**31) <= label < 2**31:
        raise SchemaError(
            f"sample {sample.key!r}, field 'label': {label} does not fit the int32 of Caffe's Datum;  "
            "hdf5 and tfrecord can hold it"
        )
    parts = delimited(4, [image]) if encoded else _planes(image)
    return [*parts, _tail(label, encoded)]


def holds_group(group: SampleGroup) -> bool:
    """Returns whether `encode_group` can encode a group of images with labels."""
    labels = group.numbers("label")
    return bool(-(2**31) <= labels.min() <= labels.max() < 2**31 and group.pieces("image").sizes.max() < _LARGEST)


def encode_group(group: SampleGroup) -> Iterator[tuple[bytes, memoryview, bytes]]:
    """Yields the Datum of each sample of a group of encoded images, in three parts."""
    images = group.pieces("image")
    data, bounds, labels = memoryview(images.data), images.bounds.tolist(), group.numbers("label").tolist()
    for start, stop, label in zip(bounds, bounds[1:], labels, strict=False):
        yield _head(stop - start), data[start:stop], _tail(label, True)


@lru_cache(1 << 12)
def _head(num_bytes: int) -> bytes:
    return varint(4 << 3 | 2) + varint(num_bytes)


@lru_cache(1 << 12)
def _tail(label: int, encoded: bool) -> bytes:
    return varint(5 << 3) + varint(label) + varint(7 << 3) + varint(encoded)


def _planes(image: Numbers) -> list[Part]:
    planes = image[:, :, ::-1] if image.shape[2] == 3 else image
    planes = planes.transpose(2, 0, 1)
    return [_dimensions(planes.shape) + _head(planes.size), planes.tobytes()]


@lru_cache(1 << 12)
def _dimensions(shape: tuple[int, ...]) -> bytes:
    return b"".join(varint(number << 3) + varint(size) for number, size in enumerate(shape, 1))


def decode(data: bytes | memoryview, schema: Schema) -> Sample:
    """Returns the sample of a Datum; its key is '', since a Datum has none.

    Raises:
        ValueError: `data` is not a Datum, or not one of this schema.
        MissingPackageError: protobuf is not installed.
    """
    try:
        datum = parse("Datum", data)
    except ValueError as error:
        raise ValueError(f"the record is not a Datum: {error}") from error
    for name in ("data", "label"):
        if not datum.HasField(name):
            raise ValueError(f"the Datum has no field {name!r}")
    return Sample("", {"image": _image(datum, schema["image"]), "label": datum.label})


def _image(datum: Any, kind: Field) -> Any:
    if datum.encoded == kind.is_number:
        found = "an encoded image" if datum.encoded else "raw pixels"
        raise ValueError(
            f"the Datum holds {found}, the schema says {kind}: read it with the schema that it was written with"
        )
    if datum.encoded:
        return datum.data
    shape = [getattr(datum, name) for name in _DIMENSIONS]
    if min(shape) < 0 or shape[0] * shape[1] * shape[2] != len(datum.data):
        raise ValueError(f"the Datum has {len(datum.data)} bytes of pixels, its dimensions C x H x W are {shape}")
    return kind.convert(_pixels(np.frombuffer(datum.data, dtype="uint8").reshape(1, *shape))[0])


def _pixels(planes: Rows) -> Rows:
    """Returns new arrays (n, height, width, channels) of Caffe's planes (n, channels, height, width), BGR as RGB."""
    planes = planes[:, ::-1] if planes.shape[1] == 3 else planes
    return planes.transpose(0, 2, 3, 1).copy()
