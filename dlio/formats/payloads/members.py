"""A file per field, as WebDataset keeps them: the extension and the content of each.

    field                                 extension                    content
    `image: bytes`                        jpg, png, ... by its magic   the encoded image
    `label: int64`                        cls                          decimal digits
    bytes                                 NAME.jpg, ... or NAME.bin    the bytes
    str                                   NAME.txt                     UTF-8
    any other number or array             NAME.npy                     NumPy's own format
    a list of bytes or str, entry 0, 1 .. NAME.000000.jpg, ... .txt    as above
    an empty list                         NAME.empty                   nothing

webdataset's `.decode()` chooses a decoder by the last word of an extension. Extensions are compared in lower case, as
webdataset compares them. A field is also read from a file whose extension is the field's bare name; an `image` from any
image file, a number from decimal digits, as other tools write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dlio.dataset.schema import Field, Fields, Sample, Schema, Value
from dlio.formats.payloads import npy
from dlio.io.random_access import Numbers

Contents = dict[bytes, bytes]  # of files, by extension
Files = Mapping[str, memoryview]

_IMAGE = re.compile(
    rb"""(?P<jpg>\xff\xd8\xff) | (?P<png>\x89PNG\r\n\x1a\n) | (?P<gif>GIF8[79]a) | (?P<bmp>BM.{4}\0{4})
    | (?P<webp>RIFF.{4}WEBP) | (?P<tif>II\*\0|MM\0\*) | (?P<jp2>\0\0\0\x0cjP\x20\x20)
    | (?P<pbm>P[14]\s) | (?P<pgm>P[25]\s) | (?P<ppm>P[36]\s)""",
    re.DOTALL | re.VERBOSE,
)
_MAGIC_BYTES = 12  # what `_IMAGE` needs
IMAGE_TYPES = frozenset([*_IMAGE.groupindex, "jpeg", "jpe", "jfif", "tiff", "pnm", "img", "image"])
_INTEGER = re.compile(rb"[+-]?[0-9]{1,20}")


def encoder(schema: Schema) -> Callable[[Sample], Contents]:
    """Returns a function from a sample to the contents of its files, in the schema's order."""
    encoders = [(name, _field_encoder(name, kind, schema)) for name, kind in schema.fields]

    def encode(sample: Sample) -> Contents:
        contents: Contents = {}
        for name, files in encoders:
            contents |= files(sample.fields[name])
        return contents

    return encode


def _field_encoder(name: str, kind: Field, schema: Schema) -> Callable[[Any], Contents]:
    if _is_class(name, schema):
        return _class_files
    if kind.is_number:
        return partial(_array_files, name, kind.dtype)
    if not kind.is_scalar:
        return partial(_list_files, name)
    if kind.dtype == "str":
        return partial(_text_files, f"{name}.txt".encode())
    bare = IMAGE_TYPES - frozenset(schema) if name == "image" else frozenset[str]()
    extension = lru_cache(partial(_extension, name, bare))
    return lambda value: {extension(value[:_MAGIC_BYTES]): value}


@lru_cache(1 << 10)  # most data sets have fewer classes
def _class_files(label: int) -> Contents:
    return {b"cls": b"%d" % label}


def _text_files(extension: bytes, value: str) -> Contents:
    return {extension: value.encode()}


def _extension(name: str, bare: frozenset[str], start: bytes) -> bytes:
    """Returns the extension of bytes that begin so: their type, alone where it is in `bare`."""
    kind = _type(start)
    return (kind if kind in bare else f"{name}.{kind}").encode()


def _list_files(name: str, values: Sequence[bytes | str]) -> Contents:
    if not values:
        return {f"{name}.empty".encode(): b""}
    return {f"{name}.{number:06d}.{_type(item)}".encode(): _bytes(item) for number, item in enumerate(values)}


def _array_files(name: str, dtype: str, value: object) -> Contents:
    return {f"{name}.npy".encode(): npy.encode(np.asarray(value, dtype=dtype))}


def gaps(kind: Field, num_bytes: Numbers, sizes: Numbers) -> Numbers:
    """Returns how many bytes come before the values in the files of a field of bytes or arrays: all are int64, (n,)."""
    return num_bytes - sizes if kind.is_number else sizes * 0


def _is_class(name: str, schema: Schema) -> bool:
    return name == "label" and str(schema[name]) == "int64" and "cls" not in schema


def _type(value: bytes | str) -> str:
    """Returns the last word of the extension for a value of this content."""
    if isinstance(value, str):
        return "txt"
    match = _IMAGE.match(value)
    return match.lastgroup or "bin" if match else "bin"


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def decode(files: Files, schema: Schema) -> Fields:
    """Returns the fields of a sample, given its files' contents by extension in lower case.

    Raises:
        ValueError: a field has no file, or more than one, or its file does not hold its type.
    """
    return {name: _field(files, name, kind, schema) for name, kind in schema.fields}


def _field(files: Files, name: str, kind: Field, schema: Schema) -> Value:
    own = sorted(extension for extension in files if extension.startswith(f"{name.lower()}."))
    if not kind.is_number and not kind.is_scalar:
        return _list(files, name, own, kind)
    found = own or [extension for extension in files if _is_bare(extension, name, schema)]
    if len(found) != 1:
        raise ValueError(f"the sample has the files {sorted(files)}: expected one for the field {name!r}")
    data = files[found[0]]
    if not kind.is_number:
        return _text(data, kind)
    return kind.convert(npy.decode(data) if bytes(data[:6]) == npy.MAGIC else _decimal(bytes(data)))


def _is_bare(extension: str, name: str, schema: Schema) -> bool:
    """Returns whether a file of another tool, of this extension, holds the field `name`."""
    if extension == name.lower():
        return True
    if name == "image" and extension in IMAGE_TYPES:
        return extension not in schema
    return extension == "cls" and _is_class(name, schema)


def _list(files: Files, name: str, own: list[str], kind: Field) -> Value:
    if own == [f"{name.lower()}.empty"]:
        own = []
    elif not own:
        raise ValueError(f"the sample has the files {sorted(files)}: expected some for the field {name!r}")
    own.sort(key=lambda extension: (len(extension.split(".")[1]), extension))
    if any(extension.split(".")[1] != f"{number:06d}" for number, extension in enumerate(own)):
        raise ValueError(f"the list {name!r} has the files {own}: expected the numbers from 000000 on")
    return kind.convert([_text(files[extension], kind) for extension in own])


def _text(data: memoryview, kind: Field) -> bytes | str:
    return bytes(data).decode() if kind.dtype == "str" else bytes(data)


def _decimal(text: bytes) -> int | float:
    return int(text) if _INTEGER.fullmatch(text.strip()) else float(text)
