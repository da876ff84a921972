"""TFRecord: length-prefixed records with two checksums, and a text index next to them.

A record (tensorflow `core/lib/io/record_writer.h`):

    u64le length | u32le masked CRC-32C of these 8 bytes | data | u32le masked CRC-32C of data
    mask(c) = ((c >> 15 | c << 17) + 0xa282ead8) mod 2^32

`NAME.idx` has a line `offset length` per record, both in bytes, the length that of the whole framed record (the form of
DALI's `tfrecord2idx`). A shard without an index is scanned when it is opened. The payload is `tf.train.Example`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset.sample_group import Pieces, SampleGroup, interleave
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, corrupt_errors
from dlio.formats import AppendFile, OpenFile, Spans, open_plain
from dlio.formats.layouts.text_index import read_index
from dlio.formats.payloads import example
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, RandomAccessFile
from dlio.native import crc32c

SUFFIX = ".tfrecord"
HEADER_BYTES = 12
FRAME_BYTES = 16
_HEAD = [("length", "<u8"), ("crc", "<u4")]


def refuses(schema: Schema) -> str | None:
    """Returns why TFRecord cannot hold this schema: never, since Example holds every field."""
    return None


def masked_crc(data: bytes | memoryview) -> int:
    """Returns the masked CRC-32C of `data`, as a uint32."""
    return int(_mask(crc32c(data)))


def _mask(crc: Any) -> Any:
    """Returns the masked form of a checksum, or of an array of uint32."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class Writer:
    """Writes a shard and its index."""

    def __init__(self, stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> None:
        self._schema = schema
        self._encode = example.encoder(schema)
        self._records: AppendFile = open_file(stem.with_name(stem.name + SUFFIX))
        self._index: AppendFile = open_file(stem.with_name(stem.name + ".idx"))

    def write(self, sample: Sample) -> None:
        parts = self._encode(sample)
        crc = 0
        for part in parts:
            crc = crc32c(part, crc)
        length = struct.pack("<Q", sum(map(len, parts)))
        offset = self._records.tell()
        head = length + struct.pack("<I", masked_crc(length))
        self._records.writelines((head, *parts, struct.pack("<I", _mask(crc))))
        self._index.write(b"%d %d\n" % (offset, self._records.tell() - offset))

    def write_group(self, group: SampleGroup) -> bool:
        """Appends samples; False unless they are for image classification."""
        if not self._schema.is_image_classification:
            return False
        parts, crcs = example.encode_group(group, self._schema), np.zeros(len(group), np.uint32)
        for column in parts:
            column.extend(crcs)
        heads = np.zeros(len(group), _HEAD)
        heads["length"] = lengths = np.sum([column.sizes for column in parts], axis=0)
        head_crcs = np.zeros(len(group), np.uint32)
        Pieces.rows(heads["length"]).extend(head_crcs)
        heads["crc"] = _mask(head_crcs)
        offset = self._records.tell()
        tails = Pieces.rows(_mask(crcs).astype("<u4"))
        self._records.writelines([interleave(*[(column, 1) for column in (Pieces.rows(heads), *parts, tails)])])
        ends = offset + np.cumsum(lengths + FRAME_BYTES)
        lines = zip((ends - lengths - FRAME_BYTES).tolist(), (lengths + FRAME_BYTES).tolist(), strict=True)
        self._index.write(b"".join([b"%d %d\n" % line for line in lines]))
        return True

    def close(self) -> None:
        with closing(self._index):
            self._records.close()


class Reader:
    """Reads a shard by record number, checking both checksums of every record."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._file = RandomAccessFile(path)
        with closed_on_error(self._file):
            self._extents = _extents(self._file)

    def __len__(self) -> int:
        return len(self._extents)

    def locate(self, index: int) -> tuple[Path, int | None]:
        return self._file.path, int(self._extents[index, 0])

    def read(self, index: int) -> Sample:
        offset, num_bytes = map(int, self._extents[index])
        frame = memoryview(self._file.read(offset, num_bytes, index))
        data = frame[HEADER_BYTES:-4]
        with corrupt_errors(self._file.path, record=index, offset=offset):
            if (length := _data_bytes(frame[:HEADER_BYTES])) != len(data):
                raise ValueError(f"the record's header says {length} bytes, the index {len(data)}")
            if masked_crc(data) != struct.unpack("<I", frame[-4:])[0]:
                raise ValueError("the data's checksum is wrong: restore the file")
            return example.decode(data, self._schema)

    def index_text(self) -> bytes:
        return b"".join(b"%d %d\n" % (offset, num_bytes) for offset, num_bytes in self._extents.tolist())

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns the offsets of the values of a field of bytes."""
        starts, num_bytes = self._extents.T
        return example.spans(self._file, (starts + HEADER_BYTES, starts + num_bytes), name, sizes, self._schema)

    def close(self) -> None:
        self._file.close()


def _extents(file: RandomAccessFile) -> Numbers:
    """Returns offset and framed size of every record, int64 of shape (n, 2), from the index or by a scan."""
    found = read_index(file.path, 2, file.num_bytes)
    if found is None:
        return np.array(list(scan(file)), dtype="int64").reshape(-1, 2)
    path, extents = found
    ends = np.concatenate([[0], extents.sum(axis=1)])
    if (extents[:, 1] < FRAME_BYTES).any() or (extents[:, 0] != ends[:-1]).any() or ends[-1] != file.num_bytes:
        problem = f"it does not match {file.path.name}, {file.num_bytes} bytes: delete it, then the records are scanned"
        raise CorruptRecordError(path, problem)
    return extents


def scan(file: RandomAccessFile) -> Iterator[tuple[int, int]]:
    """Yields offset and framed size of every record, in bytes, by reading the headers only.

    Raises:
        CorruptRecordError: a header's checksum is wrong, or a record goes beyond the end of the file.
    """
    offset = number = 0
    while offset < file.num_bytes:
        head = memoryview(file.read(offset, HEADER_BYTES, number))
        with corrupt_errors(file.path, record=number, offset=offset):
            num_bytes = _data_bytes(head) + FRAME_BYTES
        if offset + num_bytes > file.num_bytes:
            problem = f"expected {num_bytes} bytes here, the file has {file.num_bytes - offset} more: it is cut off"
            raise CorruptRecordError(file.path, problem, record=number, offset=offset)
        yield offset, num_bytes
        offset += num_bytes
        number += 1


def _data_bytes(head: memoryview) -> int:
    """Returns the size of a record's data, given its header; raises ValueError if that is damaged."""
    length, crc = struct.unpack("<QI", head)
    if masked_crc(head[:8]) != crc:
        raise ValueError("the length's checksum is wrong: restore the file")
    return int(length)
