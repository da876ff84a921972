"""WebDataset tars of any tool, whose fields are the extensions of the first samples.

    jpg, png, ...   the field `image`, if a sample has one image       cls     `label`, int64
    txt, json, ...  text                                               npy     numbers, of the array's shape
    anything else   bytes

In an extension with dots, the first word names the field, and the last word gives its type.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import Field, Schema
from dlio.errors import CorruptRecordError, DataError, SchemaError
from dlio.formats.layouts.tar import BLOCK_BYTES, Header
from dlio.formats.layouts.tar_index import SampleOffsets, has_names, read_offsets, split_name
from dlio.formats.payloads import npy
from dlio.formats.payloads.members import IMAGE_TYPES
from dlio.io.random_access import RandomAccessFile
from dlio.pack.index._infer import MAX_BYTES, MAX_RECORDS, common_field, legal_schema, own_keys, with_index
from dlio.pack.listing.file_sets import begins_with

_TEXT = frozenset(["txt", "text", "transcript", "json", "jsn"])
_CLASSES = frozenset(["cls", "cls2", "class", "count", "index", "inx", "id"])
keys = own_keys  # the name that a sample's files share


def files(path: Path) -> tuple[Path, ...]:
    """Returns the shard at `path`, a file that begins with a tar's header, and its index, if that has names."""
    try:
        is_shard = bool(Header.parse(begins_with(path, BLOCK_BYTES)).name)
    except ValueError:
        is_shard = False
    if not is_shard:
        return ()
    found = with_index(path)
    return found if all(has_names(begins_with(index, 64)) for index in found[1:]) else (path,)


def infer(records: Path) -> Schema:
    """Returns the schema of the first samples' files."""
    with closing(RandomAccessFile(records)) as file:
        layout = read_offsets(file)
        samples = []
        num_bytes = 0
        for number in range(min(len(layout), MAX_RECORDS)):
            begin, end = layout.extent(number)
            try:
                samples.append(_fields(records, file, layout, number))
            except DataError:
                raise
            except ValueError as error:
                raise CorruptRecordError(records, str(error), record=number, offset=begin) from error
            num_bytes += end - begin
            if num_bytes >= MAX_BYTES:
                break
    names = sorted({name for fields in samples for name in fields})
    for name in names:
        if missing := [number for number, fields in enumerate(samples) if name not in fields]:
            problem = f"it has no file for the field {name!r}, which others have: give the schema with --schema"
            raise CorruptRecordError(records, problem, record=missing[0])
    return legal_schema(records, {name: common_field(name, [fields[name] for fields in samples]) for name in names})


def _fields(path: Path, file: RandomAccessFile, layout: SampleOffsets, number: int) -> dict[str, Field]:
    """Returns the fields of the files of a sample."""
    contents: dict[str, tuple[int, int]] = {}
    for name, offset, num_bytes in layout.members(number):
        head = Header.parse(file.read(offset - BLOCK_BYTES, BLOCK_BYTES, number))
        extension = split_name((name or head.name).decode(errors="surrogateescape"))[1]
        contents[extension] = offset, num_bytes
    images = [extension for extension in contents if extension in IMAGE_TYPES]
    fields: dict[str, Field] = {}
    for extension, extent in contents.items():
        field, is_item = _name(extension, is_only_image=images == [extension])
        kind = _kind(extension, file, extent)
        if is_item:
            kind = Field(kind.dtype, (None,))
        elif field in fields:
            raise SchemaError(f"{path}, record {number} has several files for the field {field!r}: {sorted(contents)}")
        fields[field] = kind
    return fields


def _name(extension: str, *, is_only_image: bool) -> tuple[str, bool]:
    """Returns the field of an extension, and whether it is one entry of a list, as in `frames.000001.jpg`."""
    parts = extension.split(".")
    if is_only_image:
        return "image", False
    if extension == "cls":
        return "label", False
    return parts[0], len(parts) == 3 and len(parts[1]) == 6 and parts[1].isdigit()


def _kind(extension: str, file: RandomAccessFile, extent: tuple[int, int]) -> Field:
    last = extension.rpartition(".")[2]
    if last in _TEXT:
        return Field("str")
    if last in _CLASSES:
        return Field("int64")
    if last == "npy":
        array = npy.decode(file.read(*extent))
        return Field(array.dtype.name, array.shape)
    return Field("bytes")
