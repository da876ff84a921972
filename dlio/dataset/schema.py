"""Field, Schema and Sample: what one record of a data set holds, by name and type.

A schema is written as a mapping of field names to types:

    {"image": "bytes", "label": "int64"}            image classification
    {"image": "bytes", "label": "float32[14]"}      several labels per image, as in ChestX-ray14
    {"image": "uint8[32,32,3]", "label": "int64"}   raw arrays
    {"frames": "bytes[]", "name": "str"}            a list of encoded frames of any length

A type is `bytes`, `str` or a numpy number type, then the shape in brackets; `?` is a dimension that varies, and `[]`
is short for `[?]`. `bytes` and `str` take one dimension at most: a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.errors import SchemaError

#: Numbers of any dtype; numpy's own types allow no arithmetic on NDArray[generic].
Array = npt.NDArray[Any]
Fields = dict[str, Any]  # values by name: of one sample, or of several
Value = bytes | str | int | float | list[bytes] | list[str] | Array

NUMBER_TYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
_STORED = {name: np.dtype(name).newbyteorder("<") for name in NUMBER_TYPES}
MAX_PIXELS = 178_956_970  # of an image, half a gigabyte of RGB; Pillow's limit for decompression bombs too
_TYPE = re.compile(r"([a-z]+[0-9]*)(?:\[((?:\?|[0-9]+)(?:,(?:\?|[0-9]+))*)?(\]))?")
_LEAST, _MOST = -(2**63), 2**63 - 1  # of int64
_SMALL_BYTES = 256  # a vector of 64 float32 labels; larger arrays are data, not labels
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Field:
    """The type of one field: a dtype and a shape, None standing for a dimension that varies."""

    dtype: str
    shape: tuple[int | None, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Field:
        """Returns the field that `text` describes, such as `float32[14]`.

        Raises:
            SchemaError: `text` is not a type.
        """
        match = _TYPE.fullmatch(text)
        if match is None or match[1] not in NUMBER_TYPES | {"bytes", "str"}:
            raise SchemaError(f"{text!r} is not a field type: expected bytes, str or a number type such as float32[14]")
        dims = (match[2] or "?").split(",") if match[3] else []
        if match[1] in ("bytes", "str") and len(dims) > 1:
            raise SchemaError(f"{text!r} is not a field type: {match[1]} takes one dimension at most")
        return cls(match[1], tuple(None if dim == "?" else int(dim) for dim in dims))

    def __str__(self) -> str:
        if not self.shape:
            return self.dtype
        if self.shape == (None,):
            return f"{self.dtype}[]"
        return f"{self.dtype}[{','.join('?' if dim is None else str(dim) for dim in self.shape)}]"

    @property
    def is_number(self) -> bool:
        """True for a number or an array of numbers."""
        return self.dtype in NUMBER_TYPES

    @property
    def is_scalar(self) -> bool:
        """True if a sample holds one value."""
        return not self.shape

    @property
    def is_fixed(self) -> bool:
        """True for numbers whose count is the same in every sample."""
        return self.is_number and None not in self.shape

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape without the dimensions that vary."""
        return tuple(dim for dim in self.shape if dim is not None)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype of numbers, little-endian."""
        return _STORED[self.dtype]

    @property
    def fixed_bytes(self) -> int:
        """The size of a value of fixed shape."""
        return prod(self.fixed_shape) * np.dtype(self.dtype).itemsize

    def convert(self, value: object) -> Value:
        """Returns `value` as this field holds it: int, float, bytes, str, a list of those two, or an ndarray.

        Raises:
            SchemaError: `value` has another type or shape, or does not fit the dtype without loss.
        """
        if not self.shape:  # almost every value of a packed image
            if type(value) is bytes and self.dtype == "bytes":
                return value
            if type(value) is int and self.dtype == "int64" and _LEAST <= value <= _MOST:
                return value
        if self.is_number:
            return self._convert_number(value)
        if self.is_scalar:
            return self._convert_text(value)
        if not isinstance(value, list | tuple) or self.shape[0] not in (None, len(value)):
            raise SchemaError(f"expected {self}, found {_describe(value)}")
        return [self._convert_text(item) for item in value]  # type: ignore[return-value]

    def _admits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(dim in (None, n) for dim, n in zip(self.shape, shape, strict=True))

    def _convert_text(self, value: object) -> bytes | str:
        if self.dtype == "str" and isinstance(value, str):
            return value
        if self.dtype == "bytes" and isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise SchemaError(f"expected {self}, found {_describe(value)}")

    def _convert_number(self, value: object) -> Value:
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            raise SchemaError(f"expected {self}, found {_describe(value)} of unequal parts") from None
        if array.dtype != self.dtype:
            exact = array.dtype.kind in "biuf" and (array.size == 0 or _fits(array, self.dtype))
            if not exact:
                raise SchemaError(f"expected {self}, found {_describe(value)}")
            array = array.astype(self.dtype)
        if array.shape != self.shape and not self._admits(array.shape):
            raise SchemaError(f"expected {self}, found {_describe(value)}")
        return array if self.shape else array.item()


def _fits(array: Array, dtype: str) -> bool:
    """Returns whether whole numbers keep their value in `dtype`, and fractions stay fractions within its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
    if array.dtype.kind == "f":
        return bool(converted.dtype.kind == "f" and (np.isinf(converted) == np.isinf(array)).all())
    if converted.dtype.kind == "f":
        return bool((converted.astype("float64") == array.astype("float64")).all())
    if converted.dtype.kind == "b":
        return bool(array.dtype.kind == "b")
    limits = np.iinfo(dtype)
    return int(array.min()) >= limits.min and int(array.max()) <= limits.max


def _describe(value: object) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{getattr(value, 'dtype', '?')}{list(shape)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"{type(value).__name__} {value!r}"[:80]


@dataclass(frozen=True, slots=True)
class Schema(Mapping[str, Field]):
    """The fields of every sample of a data set, in order.

    Attributes:
        fields: name and type of each field.
        class_names: the names of the classes, or of the entries of a vector of labels; may be empty.
        label_offset: what was added to the class index to give the label (1 in TensorFlow's ImageNet files).
        is_image_classification: True for exactly one encoded image and one integer label: what each format's own tools
            expect.
    """

    fields: tuple[tuple[str, Field], ...]
    class_names: tuple[str, ...] = ()
    label_offset: int = 0
    is_image_classification: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Asked for each sample, and so computed once.
        object.__setattr__(self, "is_image_classification", self.types() == {"image": "bytes", "label": "int64"})

    @classmethod
    def of(cls, types: Mapping[str, str], class_names: tuple[str, ...] = (), label_offset: int = 0) -> Schema:
        """Returns the schema for field names and types as text.

        Raises:
            SchemaError: a name is not an identifier, or a type is unknown.
        """
        for name in types:
            if not _NAME.fullmatch(name):
                raise SchemaError(f"{name!r} is not a field name: expected letters, digits and '_' only")
        fields = tuple((name, Field.parse(text)) for name, text in types.items())
        return cls(fields, tuple(class_names), label_offset)

    def types(self) -> dict[str, str]:
        """Returns the field types as text, the inverse of `of`."""
        return {name: str(kind) for name, kind in self.fields}

    def __str__(self) -> str:
        return ", ".join(f"{name}: {kind}" for name, kind in self.fields)

    def __getitem__(self, name: str) -> Field:
        for own, kind in self.fields:
            if own == name:
                return kind
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def small(self) -> dict[str, Field]:
        """The fields of few numbers of one shape, such as labels, which are kept apart from large values."""
        return {name: kind for name, kind in self.fields if kind.is_fixed and kind.fixed_bytes <= _SMALL_BYTES}

    def class_name(self, label: int) -> str:
        """Returns the name of the class with this label, or '' if it is unknown."""
        index = label - self.label_offset
        return self.class_names[index] if 0 <= index < len(self.class_names) else ""

    def check(self, sample: Sample) -> Sample:
        """Returns `sample` with every value as its field holds it.

        Raises:
            SchemaError: a field is missing, unknown, or holds another type.
        """
        fields = sample.fields
        values, same, name = {}, len(fields) == len(self.fields), ""
        try:
            for name, kind in self.fields:
                value = fields[name]
                values[name] = converted = kind.convert(value)
                same = same and converted is value
        except KeyError:
            same = False
        except SchemaError as error:
            raise SchemaError(f"sample {sample.key!r}, field {name!r}: {error}") from None
        if same:
            return sample
        if values.keys() != fields.keys() or len(values) != len(self.fields):
            raise SchemaError(
                f"sample {sample.key!r} has the fields {sorted(sample.fields)}, expected {sorted(self)}: "
                "pack it under the schema it follows"
            )
        return Sample(sample.key, values, sample.image_info)


#: One encoded image and its class index; every format stores it as its ecosystem does.
IMAGE_CLASSIFICATION = Schema.of({"image": "bytes", "label": "int64"})


#: The format of a record of `--decode-ready`, which no other program reads, and how its bytes begin.
DECODE_READY = "decode-ready JPEG"
DECODE_READY_START = b"\x8aDRJ"


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An encoded image's header.

    Attributes:
        format: as Pillow spells it, or DECODE_READY.
        height, width: in pixels.
        channels: of colour.
        crop_ready: whether crops can be cut out of it; set by the compiled core.
        was_progressive: whether it is decode-ready, and was a progressive JPEG: it comes back as a baseline one.
    """

    format: str
    height: int
    width: int
    channels: int
    crop_ready: bool = False
    was_progressive: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One record: a key, unique in its data set, and a value for each field.

    Attributes:
        key: any non-empty text; for image folders the path below the folder.
        fields: bytes, str, int, float, lists of bytes or str, or ndarrays, by field name.
        image_info: the image's header if the packer has read it; formats may store it, none needs it.
    """

    key: str
    fields: Fields
    image_info: ImageInfo | None = field(default=None, compare=False)
