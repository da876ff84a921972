"""RecordIO: MXNet's records of up to 512 MiB, each found again by its magic number, and a text index next to them.

A record is one part or more (dmlc-core `include/dmlc/recordio.h`, `src/recordio.cc`), little-endian:

    u32 0xced7230a | u32 (flag << 29 | length) | data | zeros up to a multiple of 4
    flag: 0 the whole record, 1 its first part, 2 a middle part, 3 the last part

Data is split wherever it holds the magic number at an offset that is a multiple of 4; those four bytes are left out and
put back on reading. So the magic number at such an offset of the file always begins a part.

`NAME.idx` has a line `key<TAB>offset` per record, the key being its number, the offset in bytes. A shard without an
index is scanned when it is opened. An image with labels is MXNet's image record (`payloads/irheader.py`), which keeps
no key but the record's number; any other schema is `tf.train.Example`. RecordIO has no checksums.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from dlio.dataset.sample_group import Pieces, SampleGroup, interleave
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError, corrupt_errors
from dlio.formats import AppendFile, OpenFile, Spans, open_plain
from dlio.formats.layouts.text_index import read_index
from dlio.formats.payloads import Part, example, irheader
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = ".rec"
MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_find_magic = re.compile(re.escape(_MAGIC_BYTES)).search  # takes half the time of `in`
_HEAD = struct.Struct("<II")
_IMAGE_HEAD = [("magic", "<u4"), ("length", "<u4"), ("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")]
_PADDINGS = [bytes(-num_bytes % 4) for num_bytes in range(4)]
_LENGTH_BITS = 29
_SEARCHED_BYTES = 8 << 10  # up to this size, searching the bytes takes less time than comparing all words
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


def refuses(schema: Schema) -> str | None:
    """Returns why RecordIO cannot hold this schema: never, since Example holds every field."""
    return None


class Writer:
    """Writes a shard and its index."""

    def __init__(self, stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> None:
        self._schema = schema
        self._is_image_record = irheader.fits(schema)
        self._encode = example.encoder(schema)
        self._offsets = array("q")
        self._is_open = True
        self._records: AppendFile = open_file(stem.with_name(stem.name + SUFFIX))
        self._index: AppendFile = open_file(stem.with_name(stem.name + ".idx"))

    def write(self, sample: Sample) -> None:
        """Appends a sample.

        Raises:
            SchemaError: its record has 512 MiB or more, or its label is not exact in float32.
        """
        parts = self._payload(sample)
        num_bytes = sum(map(len, parts))
        if num_bytes >> _LENGTH_BITS:
            problem = f"its record has {num_bytes} bytes, recordio holds fewer than {1 << _LENGTH_BITS}"
            largest = max(self._schema, key=lambda name: _size(sample.fields[name]))
            raise SchemaError(f"sample {sample.key!r}, field {largest!r}: {problem}; tfrecord can hold it")
        self._offsets.append(self._records.tell())
        if num_bytes <= _SEARCHED_BYTES:  # one small write takes less time than four
            self._records.write(b"".join(frame([b"".join(parts)])))
        else:
            self._records.writelines(frame(parts))

    def write_group(self, group: SampleGroup) -> bool:
        """Appends image records with one label each; False if there is another, or one in several parts."""
        if not self._is_image_record:
            return False
        images, labels, offset = group.pieces("image"), group.numbers("label"), self._records.tell()
        if not -irheader.MAX_INTEGER <= labels.min() <= labels.max() <= irheader.MAX_INTEGER:
            return False
        sizes, number = irheader.HEADER.size + images.sizes, len(self._offsets)
        if sizes.max() >> _LENGTH_BITS:
            return False
        heads = np.zeros(len(group), _IMAGE_HEAD)
        heads["magic"], heads["length"], heads["label"] = MAGIC, sizes, labels
        heads["id"] = range(number, number + len(group))
        framed = interleave((Pieces.rows(heads), 1), (images, 4))
        if np.count_nonzero(np.frombuffer(framed, "<u4") == MAGIC) != len(group):
            return False
        lengths = _HEAD.size + sizes + -sizes % 4
        self._offsets.frombytes((offset + np.cumsum(lengths) - lengths).tobytes())
        self._records.writelines((framed,))
        return True

    def _payload(self, sample: Sample) -> list[Part]:
        if self._is_image_record:
            return irheader.encode(sample, self._schema, len(self._offsets))
        return [b"".join(self._encode(sample))]

    def close(self) -> None:
        with closing(self._index):
            self._records.close()
            if self._is_open:
                self._is_open = False
                self._index.write(b"".join([b"%d\t%d\n" % entry for entry in enumerate(self._offsets)]))


def _size(value: object) -> int:
    if isinstance(value, list):
        return sum(map(len, value))
    return getattr(value, "nbytes", None) or (len(value) if isinstance(value, bytes | str) else 0)


def frame(parts: list[Part]) -> list[Part]:
    """Returns the bytes of one record whose data is `parts`; all but the last have a multiple of 4 bytes."""
    num_bytes = sum(map(len, parts))
    padding = _PADDINGS[num_bytes % 4]
    for part in parts:
        if _may_have_magic(part):
            break
    else:
        return [_HEAD.pack(MAGIC, num_bytes), *parts, padding]
    data = b"".join(parts)
    magics = _magics(data)
    starts = [0, *(magic + 4 for magic in magics)]
    ends = [*magics, num_bytes]
    flags = [_FIRST, *[_MIDDLE] * (len(magics) - 1), _LAST] if magics else [_WHOLE]
    pieces: list[Part] = []
    for flag, start, end in zip(flags, starts, ends, strict=True):
        pieces += [_head(flag, end - start), data[start:end]]
    return [*pieces, padding]


def _head(flag: int, num_bytes: int) -> bytes:
    return _HEAD.pack(MAGIC, flag << _LENGTH_BITS | num_bytes)


def _may_have_magic(part: Part) -> bool:
    """Returns whether the magic number is in `part`: at a multiple of 4 in a large part, anywhere in a small one."""
    if len(part) <= _SEARCHED_BYTES:
        return _find_magic(part) is not None
    return bool((np.frombuffer(part, "<u4", len(part) // 4) == np.uint32(MAGIC)).any())


def _magics(data: bytes) -> list[int]:
    """Returns the offsets, multiples of 4, at which the data holds the magic number."""
    offsets = np.flatnonzero(np.frombuffer(data, "<u4", len(data) // 4) == MAGIC) * 4
    return [int(offset) for offset in offsets]


class Reader:
    """Reads a shard by record number."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._decode = irheader.decode if irheader.fits(schema) else example.decode
        self._file = RandomAccessFile(path)
        with closed_on_error(self._file):
            self._bounds = _bounds(self._file)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def locate(self, index: int) -> tuple[Path, int | None]:
        return self._file.path, int(self._bounds[:-1][index])

    def read(self, index: int) -> Sample:
        offset, end = map(int, self._bounds[index : index + 2])
        with corrupt_errors(self._file.path, record=index, offset=offset):
            data = unframe(self._file.read(offset, end - offset, index))
            return self._decode(data, self._schema)

    def index_text(self) -> bytes:
        """Returns the index of the shard, the keys of its records being their numbers."""
        return b"".join(b"%d\t%d\n" % line for line in enumerate(self._bounds[:-1].tolist()))

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of the values of a field; those of records in several parts are wrong."""
        starts, stops = self._bounds[:-1] + _HEAD.size, self._bounds[1:]
        if not irheader.fits(self._schema):
            return example.spans(self._file, (starts, stops), name, sizes, self._schema)
        return Spans(self._file, starts, stops, sizes * 0 + irheader.image_starts(self._schema))

    def close(self) -> None:
        self._file.close()


def unframe(framed: bytes) -> bytes | memoryview:
    """Returns the data of one record, given all of its parts and nothing else.

    Raises:
        ValueError: `framed` is anything else.
    """
    view = memoryview(framed)
    pieces: list[memoryview] = []
    flag = _MIDDLE
    offset = 0
    while offset < len(view):
        flag, num_bytes = _parse_head(view[offset : offset + _HEAD.size], follows=bool(pieces))
        offset += _HEAD.size
        pieces.append(view[offset : offset + num_bytes])
        offset += num_bytes + -num_bytes % 4
        if flag in (_WHOLE, _LAST):
            break
    if offset != len(view) or flag not in (_WHOLE, _LAST):
        raise ValueError(f"expected one record in {len(view)} bytes, found parts of {offset} bytes: restore the file")
    return pieces[0] if len(pieces) == 1 else _MAGIC_BYTES.join(pieces)


def _parse_head(head: bytes | memoryview, follows: bool) -> tuple[int, int]:
    """Returns flag and length, in bytes, of a part; `follows` is whether it continues a record."""
    magic, word = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
    if magic != MAGIC:
        raise ValueError(f"expected a part's magic number {MAGIC:#010x}, found {magic:#010x}: restore the file")
    flag = word >> _LENGTH_BITS
    if flag not in ((_MIDDLE, _LAST) if follows else (_WHOLE, _FIRST)):
        raise ValueError(f"a part with the flag {flag} is out of order: restore the file")
    return flag, word & (1 << _LENGTH_BITS) - 1


def _bounds(file: RandomAccessFile) -> Numbers:
    """Returns where each record begins and the last one ends, in bytes, int64 of shape (n + 1,)."""
    found = read_index(file.path, 2, file.num_bytes)
    if found is None:
        return np.array([*scan(file), file.num_bytes], dtype="int64")
    path, index = found
    bounds = np.append(np.sort(index[:, 1]), file.num_bytes)
    if bounds[0] != 0 or (np.diff(bounds) < _HEAD.size).any() or (bounds[:-1] % 4).any():
        problem = f"it does not match {file.path.name}, {file.num_bytes} bytes: delete it, then the records are scanned"
        raise CorruptRecordError(path, problem)
    return bounds


def scan(file: RandomAccessFile) -> Iterator[int]:
    """Yields the offset of every record, in bytes, by reading the parts' heads only.

    Raises:
        CorruptRecordError: a head is damaged, out of order, or goes beyond the end of the file.
    """
    offset, number, follows = 0, -1, False
    while offset < file.num_bytes or follows:
        number += not follows
        with corrupt_errors(file.path, record=number, offset=offset):
            flag, num_bytes = _parse_head(file.read(offset, _HEAD.size, number), follows)
        end = offset + _HEAD.size + num_bytes + -num_bytes % 4
        if end > file.num_bytes:
            problem = f"expected a part of {end - offset} bytes, the file ends at {file.num_bytes}: it is cut off"
            raise CorruptRecordError(file.path, problem, record=number, offset=offset)
        if not follows:
            yield offset
        follows = flag in (_FIRST, _MIDDLE)
        offset = end
