"""`tf.train.Example`: named lists of bytes, floats or 64-bit integers (tensorflow `core/example/feature.proto`).

Image classification uses the field names of TensorFlow's ImageNet files (tensorflow/tpu
`tools/datasets/imagenet_to_gcs.py`): `image/encoded`, `image/class/label`, `image/class/synset`, `image/filename`, and
the image's header. Any other schema uses its own field names:

    bytes, str        bytes_list    whole numbers and bool                        int64_list
    float16, float32  float_list    float64, uint64, arrays of 8 or 16 bits       bytes_list, raw little-endian

Arrays are stored flat in row-major order, with `NAME/shape` next to them where a dimension varies; `tf.io.decode_raw`
reads raw ones. The sample's key is `__key__`. Features are sorted, so equal samples give equal bytes. Any array is read
from a list of numbers, too.

Examples of other tools are read too: image classification from features called `image` and `label`, and a field from
the feature of its name, or whose name becomes the field's when all but letters and digits are replaced by `_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from itertools import repeat
from typing import Any

import numpy as np

from dlio.dataset.sample_group import Pieces, SampleGroup
from dlio.dataset.schema import Array, Field, ImageInfo, Sample, Schema
from dlio.formats import Spans
from dlio.formats.payloads import Part
from dlio.formats.payloads.features import RAW, RAW_ARRAYS, Features, field_value, parse
from dlio.formats.payloads.wire import delimited, varint, varint_bytes, varints
from dlio.io.random_access import Numbers, RandomAccessFile

KEY = "__key__"
IMAGE = "image/encoded"
LABEL = "image/class/label"
_BYTES, _FLOATS, _INT64S = 1, 2, 3  # the numbers of the lists in a Feature
_COLORSPACES = {1: "Grayscale", 2: "GrayscaleAlpha", 3: "RGB", 4: "RGBA"}


def encoder(schema: Schema) -> Callable[[Sample], list[Part]]:
    """Returns a function from a sample that follows the schema to its Example, in parts."""
    if schema.is_image_classification:
        return partial(_imagenet, schema)
    entries: dict[str, tuple[str, Callable[[Any], list[Part]]]] = {KEY: (KEY, partial(_text_entry, KEY))}
    for name, kind in schema.fields:
        entries[name] = name, _field_encoder(name, kind)
        if kind.is_number and None in kind.shape:
            entries[f"{name}/shape"] = name, partial(_shape_entry, f"{name}/shape")
    features = [entries[name] for name in sorted(entries)]

    def encode(sample: Sample) -> list[Part]:
        values = {KEY: sample.key} | sample.fields
        return delimited(1, [part for name, entry in features for part in entry(values[name])])

    return encode


def _imagenet(schema: Schema, sample: Sample) -> list[Part]:
    """Returns the same for an image with a label: the bytes before the image, the image, and the bytes after it.

    Most features take few values, so their bytes are cached; the rest is done some 100,000 times a second.
    """
    label, image = sample.fields["label"], sample.fields["image"]
    before, behind = _around(sample.key.encode(), label, schema.class_name(label), sample.image_info, len(image))
    return [before, image, behind]


def encode_group(group: SampleGroup, schema: Schema) -> list[Pieces]:
    """Returns the Example of each sample of a group for image classification, part by part."""
    images, names = group.pieces("image"), schema.class_name
    columns = group.keys, group.numbers("label").tolist(), group.image_infos or repeat(None), images.sizes.tolist()
    parts = [_around(key, label, names(label), info, size) for key, label, info, size in zip(*columns)]  # noqa: B905
    before, behind = zip(*parts, strict=True)
    return [Pieces.of(before), images, Pieces.of(behind)]


def _around(key: bytes, label: int, synset: str, info: ImageInfo | None, num_bytes: int) -> tuple[bytes, bytes]:
    """Returns the bytes before an image of `num_bytes`, and those after it."""
    name = key.rpartition(b"/")[2]
    before = _text_head(KEY, len(key)) + key
    behind = _text_head("image/filename", len(name)) + name
    if info is None:
        before += _class_entries(label, synset)
    else:
        before += _class_entries(label, synset, info.format, info.channels)
        behind += _size_entries(info.format, info.height, info.width)
    before += _head(IMAGE, num_bytes)
    size = varint(len(before) + num_bytes + len(behind))
    return b"\x0a" + size + before, behind


@lru_cache(1 << 14)
def _class_entries(label: int, synset: str, format: str = "", channels: int = 0) -> bytes:  # noqa: A002
    """Returns the bytes between the key and the image, with the channels if there are any."""
    entries = [*_integer_entry(LABEL, label), *_text_entry("image/class/synset", synset)]
    if channels:
        colorspace = _text_entry("image/colorspace", _colorspace(format, channels))
        entries = [*_integer_entry("image/channels", channels), *entries, *colorspace]
    return b"".join(entries)


def _colorspace(format: str, channels: int) -> str:  # noqa: A002  the field's word
    """Returns what an image's channels are, `RGB` as in TensorFlow's ImageNet files; a JPEG's fourth is black."""
    return "CMYK" if (format, channels) == ("JPEG", 4) else _COLORSPACES.get(channels, "")


@lru_cache(1 << 14)
def _size_entries(format: str, height: int, width: int) -> bytes:  # noqa: A002  the field's word
    sizes = [*_integer_entry("image/height", height), *_integer_entry("image/width", width)]
    return b"".join([*_text_entry("image/format", format), *sizes])


def _integer_entry(name: str, value: int) -> list[Part]:
    return _list_entry(name, _INT64S, varint(int(value)))


def _text_entry(name: str, value: str) -> list[Part]:
    return _list_entry(name, _BYTES, value.encode())


def _head(name: str, num_bytes: int, kind: int = _BYTES) -> bytes:
    """Returns the bytes before the value of an entry: the tags and lengths of the messages around it."""
    item = b"\x0a" + varint(num_bytes)
    items = varint(kind << 3 | 2) + varint(len(item) + num_bytes) + item
    value = b"\x12" + varint(len(items) + num_bytes) + items
    key = _key(name)
    return b"\x0a" + varint(len(key) + len(value) + num_bytes) + key + value


_text_head = lru_cache(1 << 10)(_head)  # texts have few lengths, images many


def spans(
    file: RandomAccessFile, bounds: tuple[Numbers, Numbers], name: str, sizes: Numbers, schema: Schema
) -> Spans | None:
    """Returns the offsets of a field's values in Examples between `bounds`, None for lists of varints."""
    kind = schema[name]
    if kind.is_number and kind.dtype not in RAW_ARRAYS | {"float32"}:
        return None
    feature = {"image": IMAGE, "label": LABEL}.get(name, name) if schema.is_image_classification else name
    item = 1 + varint_bytes(sizes)
    items = 1 + varint_bytes(item + sizes)
    gaps = varint_bytes(items + item + sizes) + items + item  # two tags and three lengths
    return Spans(file, *bounds, gaps, _key(feature) + b"\x12")


@cache
def _key(name: str) -> bytes:
    return b"".join(delimited(1, [name.encode()]))


def _field_encoder(name: str, kind: Field) -> Callable[[Any], list[Part]]:
    """Returns a function from a field's value to its entry, in parts."""
    if not kind.is_number:
        if not kind.is_scalar:
            return partial(_texts_entry, name)
        return partial(_text_entry, name) if kind.dtype == "str" else partial(_list_entry, name, _BYTES)
    dtype = np.dtype(kind.dtype)
    if kind.dtype in (RAW_ARRAYS if kind.shape else RAW):
        return partial(_array_entry, name, _BYTES, kind.stored_dtype)
    if dtype.kind == "f":
        return partial(_array_entry, name, _FLOATS, np.dtype("<f4"))
    return partial(_integers_entry if kind.shape else _integer_entry, name)


def _texts_entry(name: str, values: Sequence[bytes | str]) -> list[Part]:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    items = [part for value in encoded for part in delimited(1, [value])]
    return delimited(1, [_key(name), *delimited(2, delimited(1, items))])


def _array_entry(name: str, kind: int, dtype: np.dtype[np.generic], value: Any) -> list[Part]:
    return _list_entry(name, kind, np.asarray(value, dtype, order="C").reshape(-1).view(np.uint8).data)


def _integers_entry(name: str, value: Array) -> list[Part]:
    return _list_entry(name, _INT64S, varints(value.reshape(-1).astype(np.int64)))


def _shape_entry(name: str, value: Array) -> list[Part]:
    return _list_entry(name, _INT64S, b"".join(map(varint, value.shape)))


def _list_entry(name: str, kind: int, data: Part) -> list[Part]:
    """Returns the entry of a list with one value of bytes, or of packed numbers, in parts."""
    return [_text_head(name, len(data), kind), data]


def decode(data: bytes | memoryview, schema: Schema) -> Sample:
    """Returns the sample of an Example; its key is `__key__`, else `image/filename`, else ''.

    Raises:
        ValueError: `data` is not an Example, or lacks a field of the schema.
        MissingPackageError: protobuf is not installed.
    """
    features = parse(data, packed=any(kind.is_number and kind.shape for kind in schema.values()))
    names = {"image": IMAGE, "label": LABEL} if schema.is_image_classification and IMAGE in features else {}
    fields = {
        name: field_value(features, names.get(name) or _feature_name(features, name), kind)
        for name, kind in schema.fields
    }
    key = features.get(KEY) or features.get("image/filename")
    return Sample(bytes(key.bytes_list.value[0]).decode() if key and key.bytes_list.value else "", fields)


def field_of_feature(feature_name: str) -> str:
    """Returns the field's name in dlio, such as `image_height` for the feature `image/height`."""
    return re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]", "_", feature_name)


def _feature_name(features: Features, name: str) -> str:
    if name in features:
        return name
    return next((feature for feature in features if field_of_feature(feature) == name), name)
