"""Inferring a schema from the first records, for several layouts; such as that of `tf.train.Example`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Field, Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats.layouts.text_index import index_paths
from dlio.formats.payloads import example
from dlio.formats.payloads.features import Features, parse
from dlio.formats.payloads.messages import message
from dlio.pack.listing.file_sets import begins_with

MAX_RECORDS = 100
MAX_BYTES = 64 << 20
ADVICE = "give the schema of all records with --schema, or schema="
_KINDS = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}


def first_records(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the first records, at most 100 of them or 64 MiB."""
    num_bytes = 0
    for data in islice(records, MAX_RECORDS):
        yield data
        num_bytes += len(data)
        if num_bytes >= MAX_BYTES:
            return


def beginning(magic: bytes) -> Callable[[Path], tuple[Path, ...]]:
    """Returns the function `files` of a layout whose shards are one file each that begins with `magic`."""
    return lambda path: (path,) if begins_with(path, len(magic)) == magic else ()


def with_index(path: Path) -> tuple[Path, ...]:
    """Returns `path` and the text index next to it, if there is one."""
    index, _ = index_paths(path)
    return (path, index) if index.is_file() else (path,)


def no_keys(records: Path) -> Callable[[Sample], str]:
    """Returns a function to '', the key of a sample in a format without keys."""
    return lambda sample: ""


def own_keys(records: Path) -> Callable[[Sample], str]:
    """Returns a function to the key that the format's reader gives a sample."""
    return lambda sample: sample.key


def legal_schema(path: Path, fields: dict[str, Field]) -> Schema:
    """Returns the schema of these fields, `image` and `label` first; raises SchemaError if it is none."""
    if not fields:
        raise SchemaError(f"{path}: its records have no fields that dlio reads: {ADVICE}")
    order = sorted(fields, key=lambda name: ({"image": 0, "label": 1}.get(name, 2), name))
    try:
        return Schema.of({name: str(fields[name]) for name in order})
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}: {ADVICE}") from None


def common_field(name: str, found: list[Field]) -> Field:
    """Returns the field that fits all of `found`; a dimension that differs becomes variable; raises SchemaError."""
    if len({(kind.dtype, len(kind.shape)) for kind in found}) > 1:
        kinds = ", ".join(sorted({str(kind) for kind in found}))
        raise SchemaError(f"the field {name!r} is {kinds} in the first records: {ADVICE}")
    dims = [set(sizes) for sizes in zip(*(kind.shape for kind in found), strict=True)]
    return Field(found[0].dtype, tuple(sizes.pop() if len(sizes) == 1 else None for sizes in dims))


def is_example(data: bytes) -> bool:
    """Returns whether a record is a `tf.train.Example` with features."""
    if not data.startswith(b"\n"):  # the tag of its only field; so image records are read without protobuf
        return False
    try:
        return bool(parse(data))
    except ValueError:
        return False


def example_schema(path: Path, records: Iterable[bytes]) -> Schema:
    """Returns the schema of Examples: image and label if they have ImageNet's names, else every feature.

    Raises:
        CorruptRecordError: a record is not an Example.
        SchemaError: some records lack a feature, or a feature has several types.
    """
    parsed = [_parse(path, number, data) for number, data in enumerate(records)]
    if not parsed:
        raise SchemaError(f"{path} has no records: {ADVICE}")
    if all(_is_imagenet(features) for features in parsed):
        return IMAGE_CLASSIFICATION
    fields: dict[str, list[Field]] = {}
    for features in parsed:
        for name in _own(features):
            fields.setdefault(example.field_of_feature(name), []).append(_field(path, features, name))
    for name, found in fields.items():
        if len(found) != len(parsed):
            raise SchemaError(f"{path}: {len(found)} of the first {len(parsed)} records have {name!r}: {ADVICE}")
    return legal_schema(path, {name: _feature_field(name, found) for name, found in fields.items()})


def _parse(path: Path, number: int, data: bytes) -> Features:
    try:
        features = parse(data)
    except ValueError as error:
        raise CorruptRecordError(path, str(error), record=number) from error
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message("Example").FromString(data))):
        raise SchemaError(f"{path}, record {number} is not a tf.train.Example, but a SequenceExample or the like")
    return features


def _is_imagenet(features: Features) -> bool:
    image, label = features.get(example.IMAGE), features.get(example.LABEL)
    return bool(image and label and len(image.bytes_list.value) == 1 and len(label.int64_list.value) == 1)


def _own(features: Features) -> list[str]:
    """Returns the names of the features that are fields, without the key and the shapes of other features."""
    shapes = {f"{name}/shape" for name in features}
    return [name for name in features if name != example.KEY and name not in shapes]


def _field(path: Path, features: Features, name: str) -> Field:
    feature = features[name]
    kinds = [kind for kind in _KINDS if feature.HasField(kind)]
    if len(kinds) != 1:
        raise SchemaError(f"{path}: the feature {name!r} is empty in one of the first records: {ADVICE}")
    shape = features.get(f"{name}/shape")
    if shape is not None:
        return Field(_KINDS[kinds[0]], (None,) * len(shape.int64_list.value))
    return Field(_KINDS[kinds[0]], (len(getattr(feature, kinds[0]).value),))


def _feature_field(name: str, found: list[Field]) -> Field:
    """Returns a field for lists of values: one value is a scalar, a list of bytes has any length."""
    kind = common_field(name, found)
    if kind.shape == (1,):
        return Field(kind.dtype)
    return kind if kind.is_number else Field(kind.dtype, (None,))
