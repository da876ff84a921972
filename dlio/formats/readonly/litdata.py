"""LitData: the chunks of Lightning's `optimize`, read only (litdata `streaming/{writer,serializers}.py`).

A chunk is laid out as an MDS shard without its configuration: u32 n, u32 offsets[n + 1], items; an item has one u32
size for each leaf, then the leaves. Names and types of the leaves are in the folder's `index.json`; `dlio index` keeps
them for each chunk in `.dlio-index/NAME.idx`, as JSON.

    leaf                                     field
    jpeg, bytes, image:EXT, file:EXT         bytes
    str, text                                str
    int, float, bool                         int64, float64, bool
    no_header_numpy:N, no_header_tensor:N    TYPE[?], the type by its number
    numpy, tensor                            array: u32 type, u32 dims, u32 of each, values; big-endian in a tensor

The leaves of a list or tuple are called image and label if they are bytes and int, else `field_0` and so on. Names are
read as MDS's. Pickles are code and are refused; so are raw images (`pil`), encryption and compression.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset.schema import NUMBER_TYPES, Field, Value
from dlio.errors import MALFORMED, corrupt_errors
from dlio.formats.layouts.text_index import read_text
from dlio.formats.readonly import mds, not_written
from dlio.io.random_access import read_whole

SUFFIX = ".bin"
INDEX = "index.json"
_BYTES = ("jpeg", "bytes", "image", "file")
_PLAIN = dict.fromkeys(_BYTES, mds.BYTES) | dict.fromkeys(("str", "text"), mds.TEXT)
_NUMBERS = {"int": "int64", "float": "float64", "bool": "bool"}
_NUMPY = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
_TORCH = "float32 float32 float64 float64 - - - - float16 float16 - uint8 int8 int16 int16 int32 int32"
_TORCH += " int64 int64 bool uint16"
_TYPES = {"numpy": (*_NUMPY, "", "", "bool"), "tensor": tuple(_TORCH.split())}
refuses = not_written("LitData")


def _leaf(name: str, encoding: str) -> mds.Column:
    """Returns a leaf; every leaf has its size in the item."""
    kind, _, of = encoding.partition(":")
    field, decode = _PLAIN.get(kind, (None, partial(mds.refused, f"the leaf {name!r} is of the type {encoding!r}")))
    if kind in _NUMBERS:
        field = Field(_NUMBERS[kind])
        decode = partial(mds.numbers, dtype=field.dtype, shape=[])
    elif encoding in _TYPES:
        decode = partial(_array, name, encoding)
    elif kind.startswith("no_header_"):
        with suppress(ValueError):
            field = Field(_number_type(kind.removeprefix("no_header_"), of), (None,))
            decode = partial(mds.numbers, dtype=field.dtype, shape=[-1])
    return mds.Column(name, encoding, None, field, decode)


def _array(name: str, library: str, data: bytes) -> Value:
    """Returns an array that contains its type and shape."""
    order = "<" if library == "numpy" else ">"
    head = np.frombuffer(data[:8], f"{order}u4")
    if len(head) != 2 or 4 * int(head[1]) > len(data) - 8:
        raise ValueError(f"the leaf {name!r} holds no array")
    begin = 8 + 4 * int(head[1])
    shape = np.frombuffer(data[8:begin], f"{order}u4").tolist()
    return mds.numbers(data[begin:], _number_type(library, str(head[0])), shape)


def _number_type(library: str, number: str) -> str:
    types = _TYPES.get(library, ())
    name = types[int(number)] if number.isdecimal() and len(number) < 4 and int(number) < len(types) else ""
    if name not in NUMBER_TYPES:
        raise ValueError(f"{number!r} is not the number of a type that dlio reads")
    return name


def parse_leaves(path: Path, text: bytes) -> list[mds.Column]:
    """Returns the leaves that an index describes.

    Raises:
        CorruptRecordError: it is not an index of LitData, or its chunks are compressed or encrypted.
    """
    with corrupt_errors(path, "it is not an index of LitData chunks that dlio reads ({})", kinds=MALFORMED):
        config = json.loads(text)["config"]
        for option in ("compression", "encryption"):
            if config.get(option):
                raise ValueError(f"{option} {config[option]!r}: write the chunks without it")
        kinds = [str(kind) for kind in config["data_format"]]
        spec = json.loads(config["data_spec"])[1] if config["data_spec"] else {"type": None}
        names = _named(list(_paths(spec, ())), kinds)
        leaves = list(map(_leaf, names, kinds))
        if len(set(names)) != len(names):
            raise ValueError("two leaves of one name")
        return leaves


def _paths(spec: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the names around each leaf of a tree; the number of one in a list."""
    if spec["type"] is None:
        yield above
        return
    children = spec["children_spec"]
    names = json.loads(spec["context"]) if str(spec["type"]).endswith("ict") else map(str, range(len(children)))
    for name, child in zip(names, children, strict=True):
        yield from _paths(child, (*above, str(name)))


def _named(paths: Sequence[tuple[str, ...]], kinds: Sequence[str]) -> list[str]:
    """Returns the leaves' names; one of bytes and one int without names are an image and its label."""
    names = ["_".join(path) for path in paths]
    if any(not name.isdecimal() and name for name in names):
        return names
    held = {next((n for n, kind in enumerate(kinds) if kind.partition(":")[0] in _BYTES), -1): "image"}
    held[next((n for n, kind in enumerate(kinds) if kind == "int"), -1)] = "label"
    return [held.get(number, f"field_{number}") for number in range(len(names))]


def read_leaves(records: Path) -> tuple[bytes, list[mds.Column]]:
    """Returns the index of a chunk, which names its leaves, and the leaves.

    Raises:
        CorruptRecordError: it is not an index of LitData.
        StorageError: it cannot be read.
    """
    path, text = read_text(records) or (records.with_name(INDEX), b"")
    text = text or read_whole(path)
    return text, parse_leaves(path, text)


class Reader(mds.Reader):
    """Reads a chunk by record number."""

    def _read_columns(self) -> Sequence[mds.Column]:
        self._text, leaves = read_leaves(self._file.path)
        return leaves

    def index_text(self) -> bytes:
        """Returns the index of the chunk: the configuration of the folder's."""
        config = json.loads(self._text)["config"]
        kept = {name: config[name] for name in ("data_format", "data_spec")}
        return json.dumps({"config": kept}).encode() + b"\n"
