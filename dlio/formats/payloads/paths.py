"""Samples as files of a folder tree: what a field's file is called, and the files that say what no file's name does.

    an encoded image        the sample's key, `cat/1.jpg`, or `KEY.jpg` if the key has no image's extension
    another field           `KEY.EXTENSION` with the extension and content of `payloads/members.py`
    small numbers           no file of their own, but a row in a column, unless a sample would have no file at all

Small numbers are those of one shape in up to 256 bytes, such as a label. A key is the path in UTF-8; empty parts and
`.` are dropped, since no folder can hold them. If the path is taken, `-` and the record's number of 8 digits follow its
stem. These files lie next to the class folders, where ImageFolder does not
see them: STEM is the shard's, so that the files of several shards can lie in one folder.

    .dlio-STEM.json           {"dlio": 1, "samples": n, "types": {...}, "class_names": [...], "label_offset": 0}
    .dlio-STEM.FIELD.npy      the column of a field, n rows
    .dlio-STEM.files.npy      int64, the number of files of each sample, if lists make it vary
    .dlio-STEM.labels.csv     path of the first file, and the small numbers, of each sample, for other programs
    .dlio-STEM.samples.npz    the table of the samples, if the writer was given one
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from dlio.dataset.schema import Array, Sample, Schema
from dlio.formats.payloads import members, npy

PREFIX = b".dlio-"
DESCRIPTION = b".json"
TABLE = b".samples.npz"
COUNTS = b".files.npy"
_MAX_NAME_BYTES = 255  # of file systems, which unpack it; SquashFS itself allows 256
_MAX_PATH_BYTES = 4096 - 256  # below a mount point
_STEM_BYTES = 200
_NOT_QUOTED = re.compile(rb'[^",\r\n]*')  # in a file of comma-separated values
_END_BYTES = 5, 7  # of a path: usual extensions, and the longest one, with a point and a letter before it
_IMAGE_TYPES = frozenset(map(str.encode, members.IMAGE_TYPES))
_VERSION = 1
_OF_IMAGE = re.compile(rb"image\.(?!npy|txt)[a-z0-9]+")
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


def column_names(schema: Schema) -> tuple[str, ...]:
    """Returns the fields that are kept in columns."""
    return tuple(schema.small) if len(schema.small) < len(schema) else ()


def file_schema(schema: Schema) -> Schema:
    """Returns the fields that are kept in files."""
    kept = column_names(schema)
    return Schema(tuple((name, kind) for name, kind in schema.fields if name not in kept))


def path_of(key: str) -> bytes:
    """Returns the path of a key.

    Raises:
        ValueError: it cannot be a path.
    """
    folder, _, name = key.encode().rpartition(b"/")
    path = _folder(folder) + _part(name) if name not in (b"", b".") else _folder(folder)[:-1]
    if not path or b"\0" in path:
        raise ValueError("it is not a path below a folder")
    if len(path) > _MAX_PATH_BYTES:
        raise ValueError(f"it has {len(path)} bytes, the longest path has {_MAX_PATH_BYTES}")
    if path.startswith(PREFIX):
        raise ValueError(f"names that begin with {PREFIX.decode()} are dlio's own")
    return path


def are_paths(keys: Sequence[bytes]) -> bool:
    """Returns whether `path_of` returns every key unchanged; may return False although it would."""
    text = b"/%b/" % b"/".join(keys)
    if any(found in text for found in (b"//", b"/./", b"/../", b"\0", b"/" + PREFIX)):
        return False
    slashes = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("/"))
    return bool(np.diff(slashes).max() <= _MAX_NAME_BYTES + 1) and max(map(len, keys)) <= _MAX_PATH_BYTES


@lru_cache(1 << 10)  # keys come folder by folder
def _folder(path: bytes) -> bytes:
    return b"".join([_part(part) + b"/" for part in path.split(b"/") if part not in (b"", b".")])


def _part(name: bytes) -> bytes:
    if name == b"..":
        raise ValueError("it is not a path below a folder")
    if len(name) > _MAX_NAME_BYTES:
        raise ValueError(f"a name in it has {len(name)} bytes, a file system holds {_MAX_NAME_BYTES}")
    return name


def has_image_extension(path: bytes) -> bool:
    """Returns whether a path ends like an image's."""
    stem, _, extension = path.rpartition(b".")
    return extension.lower() in _IMAGE_TYPES and stem[-1:] not in (b"", b"/")


def have_image_extensions(paths: Sequence[bytes]) -> bool:
    """Returns whether all paths end like an image's."""
    return any(all(map(has_image_extension, {path[-size:] for path in paths})) for size in _END_BYTES)


class Paths:
    """Different paths of files, none of which is the folder of another."""

    def __init__(self) -> None:
        self._files: set[bytes] = set()
        self._folders: set[bytes] = {b""}

    def has(self, path: bytes) -> bool:
        """Returns whether `path` is one of these files, or the folder of one."""
        return path in self._files or path in self._folders

    def add(self, path: bytes) -> None:
        """Adds a path; raises ValueError if it exists, or a file and a folder would have one name."""
        if path in self._files:
            raise ValueError(f"another sample has the file {_text(path)!r} too")
        if path in self._folders:
            raise ValueError(f"the folder of another sample is called {_text(path)!r} too")
        new, folder = [], path.rpartition(b"/")[0]
        while folder not in self._folders:
            if folder in self._files:
                raise ValueError(f"its folder {_text(folder)!r} is the file of another sample")
            new.append(folder)
            folder = folder.rpartition(b"/")[0]
        self._folders.update(new)
        self._files.add(path)

    def add_all(self, paths: Sequence[bytes]) -> bool:
        """Adds paths; returns False, and adds none, if one cannot be added."""
        new, folders = set(paths), set[bytes]()
        for folder in {path.rpartition(b"/")[0] for path in new} - self._folders:
            while folder not in folders and folder not in self._folders:
                folders.add(folder)
                folder = folder.rpartition(b"/")[0]
        if len(new) < len(paths) or not (new.isdisjoint(self._files) and new.isdisjoint(self._folders)):
            return False
        if not (new.isdisjoint(folders) and folders.isdisjoint(self._files)):
            return False
        self._files |= new
        self._folders |= folders
        return True


def refused_keys(schema: Schema, keys: Iterable[str]) -> dict[int, str]:
    """Returns the numbers of the keys that cannot be paths together with the keys before them, with reasons."""
    image = "image" in schema and str(schema["image"]) == "bytes"
    paths, refused, encoded = Paths(), dict[int, str](), [key.encode() for key in keys]
    if image and encoded and are_paths(encoded) and have_image_extensions(encoded) and paths.add_all(encoded):
        return {}
    for number, key in enumerate(keys):
        try:
            path = path_of(key)
            paths.add(path if image and has_image_extension(path) else path + b".")  # its extension is not known yet
        except ValueError as error:
            refused[number] = str(error)
    return refused


def tagged(path: bytes, number: int) -> bytes:
    """Returns a path like `path`, with a number before an image's extension, or at its end."""
    stem, dot, extension = path.rpartition(b".") if has_image_extension(path) else (path, b"", b"")
    return b"%b-%08d%b%b" % (stem, number, dot, extension)


def named(path: bytes, contents: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Returns path and content of each file of a sample, given its path and its contents by extension.

    Raises:
        ValueError: a name is too long.
    """
    is_image = has_image_extension(path)
    found = []
    for extension, content in contents.items():
        is_own = is_image and (extension.decode() in members.IMAGE_TYPES or _OF_IMAGE.fullmatch(extension))
        found.append((path if is_own else path + b"." + extension, content))
    longest = max(len(name.rpartition(b"/")[2]) for name, _ in found)
    if longest > _MAX_NAME_BYTES:
        raise ValueError(f"a file's name has {longest} bytes, a file system holds {_MAX_NAME_BYTES}")
    return found


def split(paths: Sequence[bytes], schema: Schema) -> tuple[str, list[str]]:
    """Returns the key of a sample, and the extension of each of its files in lower case, given the fields in files.

    Raises:
        ValueError: the files are not those of one sample.
    """
    number = int(str(schema.get("image")) == "bytes" and next(iter(schema)) == "image")  # its name tells no field
    if number == len(schema):
        return _text(paths[0]), ["image." + _text(paths[0]).rpartition(".")[2].lower()]
    name, path = list(schema)[number], paths[number] if number < len(paths) else b""
    match = re.fullmatch(rf"(.*)\.{name}\.(?:[0-9]{{6}}\.)?[a-z0-9]+|(.*)\.cls".encode(), path, re.DOTALL)
    if match is None:
        raise ValueError(f"expected a file of the field {name!r}, found {_text(path)!r}")
    key = match[1] or match[2]
    if any(path != key and not path.startswith(key + b".") for path in paths):
        raise ValueError(f"expected files of one sample, found {list(map(_text, paths))}")
    rest = [path[len(key) + 1 :] or b"image." + key.rpartition(b".")[2] for path in paths]
    return _text(key), [_text(extension).lower() for extension in rest]


def _text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Description:
    """What a folder tree says of its samples.

    Attributes:
        schema: their schema.
        num_samples: how many there are.
    """

    schema: Schema
    num_samples: int

    def to_bytes(self) -> bytes:
        """Returns it as JSON."""
        schema = self.schema
        content: dict[str, Any] = {"dlio": _VERSION, "samples": self.num_samples, "types": schema.types()}
        content |= {"class_names": schema.class_names, "label_offset": schema.label_offset}
        return json.dumps(content, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> Description:
        """Returns what JSON says; raises ValueError if it does not say it."""
        try:
            found = json.loads(data)
            if found["dlio"] != _VERSION:
                raise ValueError(f"it is of version {found['dlio']!r}, expected {_VERSION}: install a newer dlio")
            names = tuple(map(str, found["class_names"]))
            schema = Schema.of(dict(found["types"]), names, int(found["label_offset"]))
            return cls(schema, int(found["samples"]))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"the description of its samples is damaged: {error!r}") from error


def stem_of(name: str) -> bytes:
    """Returns what the names of the files next to the class folders begin with, for a shard of this name."""
    return PREFIX + name.encode()[:_STEM_BYTES].decode(errors="ignore").encode()


def labels_csv(paths: Sequence[bytes], columns: Mapping[str, Array]) -> bytes:
    """Returns a row for each sample: the path of its first file, and its small numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    flat = {name: values.reshape(len(values), prod(values.shape[1:])) for name, values in columns.items()}
    heads = [
        name if columns[name].ndim == 1 else f"{name}_{number}"
        for name, values in flat.items()
        for number in range(values.shape[1])
    ]
    writer.writerow(["path", *heads])
    lists = [column.tolist() for values in flat.values() for column in values.T]
    if len(lists) == 1 and columns[heads[0]].dtype.kind == "i" and _NOT_QUOTED.fullmatch(b"".join(paths)):
        return out.getvalue().encode() + b"".join([b"%b,%d\n" % row for row in zip(paths, lists[0], strict=True)])
    writer.writerows(zip(map(_text, paths), *lists, strict=True))
    return out.getvalue().encode()


def read_column(data: bytes, name: str, schema: Schema, count: int) -> Array:
    """Returns the values of a small field of all samples; raises ValueError if `data` does not hold them."""
    kind, found = schema[name], npy.decode(data)
    if found.shape != (count, *kind.fixed_shape) or found.dtype != kind.dtype:
        raise ValueError(f"the column {name!r} holds {found.dtype}{list(found.shape)}, expected {count} of {kind}")
    return found


def column_file(values: Sequence[Any], name: str, schema: Schema) -> Array:
    """Returns the values of a small field as an array of its dtype, one row for each sample."""
    kind = schema[name]
    return np.array(values, kind.dtype).reshape(len(values), *kind.fixed_shape)


def with_columns(sample: Sample, rows: Mapping[str, Any], schema: Schema) -> Sample:
    """Returns a sample of the fields in files with the values of its small fields, in the schema's order."""
    values = sample.fields | {name: schema[name].convert(row) for name, row in rows.items()}
    return Sample(sample.key, {name: values[name] for name in schema})
