"""Offsets of the samples of a tar, from DALI's index or by a scan of the headers."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from dlio.errors import CorruptRecordError, corrupt_errors
from dlio.formats.layouts.tar import BLOCK_BYTES, NAME_BYTES, TarMember, padding, scan
from dlio.formats.layouts.text_index import read_text
from dlio.io.random_access import Numbers, RandomAccessFile

_FIRST_LINE = re.compile(rb"v1\.2 ([0-9]{1,18})\n")
_OLDER = re.compile(rb"v1\.[01] [0-9]+\n")  # without names
_META = re.compile(r"__[^/]*__(?:$|/)")


def split_name(path: str) -> tuple[str, str]:
    """Returns key and extension, in lower case, of a member: split at the first dot of the base name.

    Raises:
        ValueError: the base name has no dot, or begins with one; such files belong to no sample.
    """
    folders, slash, base = path.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot:
        raise ValueError(f"the file {path!r} has no key or no extension")
    return folders + slash + stem, extension.lower()


class SampleOffsets:
    """Offsets and sizes of the files of a tar's samples, and the names that ustar headers cannot hold."""

    def __init__(self, samples: Iterable[list[TarMember]]) -> None:
        self._offsets = array("q")
        self._sizes = array("q")
        self._starts = array("q", [0])  # number of the first file of each sample, and of all files
        self._names: dict[int, bytes] = {}
        for sample in samples:
            for member in sample:
                if len(member.name) > NAME_BYTES or not member.name.isascii():
                    self._names[len(self._offsets)] = member.name
                self._offsets.append(member.offset)
                self._sizes.append(member.num_bytes)
            self._starts.append(len(self._offsets))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def extent(self, index: int) -> tuple[int, int]:
        """Returns the offsets of a sample's first header and of the end of its last file's data, in bytes."""
        last = self._starts[index + 1] - 1
        return self._offsets[self._starts[index]] - BLOCK_BYTES, self._offsets[last] + self._sizes[last]

    def members(self, index: int) -> Iterator[tuple[bytes | None, int, int]]:
        """Yields name (None if only the header has it), offset and size, in bytes, of the data of a sample's files."""
        for number in range(self._starts[index], self._starts[index + 1]):
            yield self._names.get(number), self._offsets[number], self._sizes[number]

    def index_text(self) -> bytes | None:
        """Returns an index of these samples; None where a name that is kept here has white space, which parts words.

        A name that stands in the file's header is left out.
        """
        if any(len(name.split()) != 1 for name in self._names.values()):
            return None
        lines = [
            b" ".join([b"- %d %d %b" % (offset, size, name or b"-") for name, offset, size in self.members(index)])
            for index in range(len(self))
        ]
        return b"v1.2 %d\n%b" % (len(self), b"".join(line + b"\n" for line in lines))

    def files(self, number: int, count: int) -> tuple[Numbers, Numbers]:
        """Returns the bounds of file `number` of each sample; 0 and 0 for samples of another count of files.

        Returns:
            Two arrays, int64 of shape (n,), in bytes.
        """
        firsts = np.array(self._starts, dtype="int64")
        known = np.diff(firsts) == count
        numbers = np.where(known, firsts[:-1] + number, 0)
        starts = np.array(self._offsets, dtype="int64")[numbers]
        stops = starts + np.array(self._sizes, dtype="int64")[numbers]
        return np.where(known, starts, 0), np.where(known, stops, 0)

    def lies_within(self, num_bytes: int) -> bool:
        """Returns whether the files are in order, each after its header, within a tar of `num_bytes`."""
        free = 0
        for offset, size in zip(self._offsets, self._sizes, strict=True):
            if offset % BLOCK_BYTES or offset < free + BLOCK_BYTES or size < 0:
                return False
            free = offset + size + padding(size)
        return free <= num_bytes


def read_offsets(file: RandomAccessFile) -> SampleOffsets:
    """Returns the offsets of a tar's samples, from the index next to it, or by a scan.

    Raises:
        CorruptRecordError: the index does not match the tar, or the tar is damaged.
        StorageError: one of them cannot be read.
    """
    found = read_text(file.path, has_names, file.num_bytes)
    if found is None:
        return SampleOffsets(_grouped(scan(file)))
    path, text = found
    with corrupt_errors(path, "{}: delete it, then the tar is scanned"):
        layout = SampleOffsets(_parse(text))
    if not layout.lies_within(file.num_bytes):
        problem = f"it does not match {file.path.name}, {file.num_bytes} bytes: delete it, then the tar is scanned"
        raise CorruptRecordError(path, problem)
    return layout


def has_names(text: bytes) -> bool:
    """Returns whether an index is not of DALI's older form, without the names of the files."""
    return _OLDER.match(text) is None


def _parse(text: bytes) -> list[list[TarMember]]:
    first = _FIRST_LINE.match(text)
    if first is None:
        raise ValueError("expected 'v1.2' and the number of samples in the first line")
    lines = text[first.end() :].split(b"\n")
    if lines.pop() or len(lines) != int(first[1]):
        raise ValueError(f"expected {int(first[1])} lines of samples, found {len(lines)}")
    return [_parse_line(line.split()) for line in lines]


def _parse_line(fields: list[bytes]) -> list[TarMember]:
    if not fields or len(fields) % 4:
        raise ValueError(
            f"expected extension, offset, size and name of each file, found {len(fields)} fields in a line"
        )
    numbers = map(int, fields[1::4]), map(int, fields[2::4])
    return [TarMember(name, offset, size) for name, offset, size in zip(fields[3::4], *numbers, strict=True)]


def _grouped(files: Iterable[TarMember]) -> Iterator[list[TarMember]]:
    """Yields the files of each sample: adjacent files of one key."""
    sample: list[TarMember] = []
    current = ""
    for member in files:
        name = member.name.decode(errors="surrogateescape")
        try:
            key, _ = split_name(name)
        except ValueError:
            continue  # as webdataset does: files without an extension belong to no sample
        if _META.match(name):
            continue
        if sample and key != current:
            yield sample
            sample = []
        current = key
        sample.append(member)
    if sample:
        yield sample
