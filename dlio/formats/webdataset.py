"""WebDataset: a tar with a file per field, and DALI's text index next to it.

The files of a sample are adjacent, named `KEY.EXTENSION`, split at the first dot of the base name (webdataset
`tariterators.py`); `payloads/members.py` defines each field's extension and content. The tar is plain
POSIX ustar with mtime 0, owner `bigdata` and mode 0444, so equal samples give equal bytes, and ends with two blocks of
zeros. Headers have checksums, data has none.

A sample's key becomes a member's name as follows; every reader returns this container key:

    1. an image's extension is dropped: `cat/1.jpg` is `cat/1`
    2. dots of the base name, white space and control characters become `_`; so do the folders `.` and `..`
    3. empty folders and underscores in front are dropped, since absolute paths and `__meta__` mean something else
    4. a name that ustar cannot hold (100 bytes, or 155 and a slash before them) is cut and gets `-` and the record's
       number of 8 digits; so does a name that an earlier sample of the shard has taken

`NAME.idx` (NVIDIA DALI `tools/wds2idx.py`) has a line `v1.2 N`, then a line per sample: `extension offset size name`
of each file, the offset that of its data. Without it, or with its older form without names, the tar is scanned when it
is opened.
"""

from __future__ import annotations

import re
from contextlib import closing
from functools import lru_cache
from itertools import count
from pathlib import Path

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, corrupt_errors
from dlio.formats import AppendFile, OpenFile, Spans, open_plain
from dlio.formats.layouts import tar
from dlio.formats.layouts.tar_index import read_offsets, split_name
from dlio.formats.payloads import members
from dlio.io.files import closed_on_error
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = ".tar"
_MAX_FIELD_NAME = 48  # leaves a member's name 38 bytes for the key next to `NAME.000000.jpg`
_ILLEGAL = re.compile(r"[\s\x00-\x1f\x7f\ud800-\udfff]")


def refuses(schema: Schema) -> str | None:
    """Returns why WebDataset cannot hold this schema, naming the field, or None if it can."""
    if not len(schema):
        return "it has no fields, and webdataset stores each field of a sample as a file"
    seen: dict[str, str] = {}
    for name in schema:
        if len(name) > _MAX_FIELD_NAME:
            return f"the name of the field {name!r} is longer than {_MAX_FIELD_NAME} letters"
        if (other := seen.setdefault(name.lower(), name)) != name:
            return f"the fields {other!r} and {name!r} differ only in case, which webdataset does not distinguish"
    return None


def legal_key(key: str) -> bytes:
    """Returns the key that a tar's members can have, UTF-8, by the rules 1 to 3 above."""
    folders, _, base = key.rstrip("/").rpartition("/")
    stem, _, extension = base.rpartition(".")
    if stem and extension.lower() in members.IMAGE_TYPES:
        base = stem
    return ((_legal_folders(folders) + _ILLEGAL.sub("_", base).replace(".", "_")).lstrip("_/") or "_").encode()


@lru_cache(1 << 10)
def _legal_folders(folders: str) -> str:
    parts = _ILLEGAL.sub("_", folders).split("/")
    return "".join([f"{'_' if part in ('.', '..') else part}/" for part in parts if part])


class Writer:
    """Writes a shard and its index."""

    def __init__(self, stem: Path, schema: Schema, open_file: OpenFile = open_plain) -> None:
        self._encode = members.encoder(schema)
        self._keys: set[bytes] = set()
        self._lines: list[bytes] = []
        self._is_open = True
        self._records: AppendFile = open_file(stem.with_name(stem.name + SUFFIX))
        self._index: AppendFile = open_file(stem.with_name(stem.name + ".idx"))

    def write(self, sample: Sample) -> None:
        """Appends a sample.

        Raises:
            SchemaError: a field has 8 GiB or more.
        """
        files = self._encode(sample)
        prefix, key = self._name(legal_key(sample.key), max(map(len, files)))
        path = prefix + b"/" + key if prefix else key
        stem = key + b"."
        pieces: list[bytes] = []
        members = []
        offset = self._records.tell()
        for extension, data in files.items():
            num_bytes = len(data)
            if num_bytes > tar.MAX_MEMBER_BYTES:
                problem = f"{num_bytes} bytes, webdataset can hold {tar.MAX_MEMBER_BYTES}; tfrecord can hold it"
                raise SchemaError(f"sample {sample.key!r}, file {extension.decode()!r}: {problem}")
            header, zeros = tar.frame(stem, extension, prefix, num_bytes)
            pieces += header, data, zeros
            offset += tar.BLOCK_BYTES
            members.append(b"%b %d %d %b.%b" % (extension, offset, num_bytes, path, extension))
            offset += num_bytes + len(zeros)
        self._records.writelines(pieces)
        self._keys.add(path)
        self._lines.append(b" ".join(members))

    def write_group(self, group: SampleGroup) -> bool:
        """Appends samples of less than 8 GiB; False if there is another."""
        if sum(map(len, group.fields.get("image", ()))) > tar.MAX_MEMBER_BYTES:
            return False
        for sample in group:
            self.write(sample)
        return True

    def _name(self, key: bytes, extension_bytes: int) -> tuple[bytes, bytes]:
        """Returns prefix and name of a new key, short enough for an extension of `extension_bytes`."""
        room = tar.NAME_BYTES - 1 - extension_bytes
        name = _fit(key, room)
        if name is None or key in self._keys:
            start = _cut(key, room - 9).replace(b".", b"_")
            tagged = (start + b"-%08d" % number for number in count(len(self._lines)))
            key = next(candidate for candidate in tagged if candidate not in self._keys)
            name = b"", key
        return name

    def close(self) -> None:
        with closing(self._index), closing(self._records):
            if self._is_open:
                self._is_open = False
                self._records.write(tar.END)
                self._index.write(b"\n".join([b"v1.2 %d" % len(self._lines), *self._lines, b""]))


def _fit(key: bytes, room: int) -> tuple[bytes, bytes] | None:
    """Returns the key as ustar's prefix and a name of at most `room` bytes, None if it is too long."""
    if len(key) <= room:
        return b"", key
    slash = key.rfind(b"/", 0, tar.PREFIX_BYTES + 1)
    return (key[:slash], key[slash + 1 :]) if slash > 0 and len(key) - slash - 1 <= room else None


def _cut(key: bytes, num_bytes: int) -> bytes:
    return key[:num_bytes].decode(errors="ignore").encode()


class Reader:
    """Reads a shard by record number, checking the header of every file."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self._file = RandomAccessFile(path)
        with closed_on_error(self._file):
            self._samples = read_offsets(self._file)

    def __len__(self) -> int:
        return len(self._samples)

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the shard's file and the offset in it of the record's first header, in bytes."""
        return self._file.path, self._samples.extent(index)[0]

    def read(self, index: int) -> Sample:
        begin, end = self._samples.extent(index)
        view = memoryview(self._file.read(begin, end - begin, index))
        files: dict[str, memoryview] = {}
        keys = set()
        with corrupt_errors(self._file.path, record=index, offset=begin):
            for name, at, num_bytes in self._samples.members(index):
                key, extension = _check(view[at - begin - tar.BLOCK_BYTES : at - begin], name, num_bytes)
                if extension in files:
                    raise ValueError(f"the sample has two files {extension!r}")
                files[extension] = view[at - begin : at - begin + num_bytes]
                keys.add(key)
            if len(keys) != 1:
                raise ValueError(f"expected files of one sample, found those of {sorted(keys)}")
            return Sample(keys.pop(), members.decode(files, self._schema))

    def index_text(self) -> bytes | None:
        """Returns the index of the shard, None if an index cannot hold its names."""
        return self._samples.index_text()

    def spans(self, name: str, sizes: Numbers) -> Spans:
        """Returns the offsets of a field of bytes, for samples of one file a field in the schema's order."""
        starts, stops = self._samples.files(list(self._schema).index(name), len(self._schema))
        return Spans(self._file, starts, stops, members.gaps(self._schema[name], stops - starts, sizes))

    def close(self) -> None:
        self._file.close()


def _check(block: memoryview, name: bytes | None, num_bytes: int) -> tuple[str, str]:
    """Returns key and extension of a file, given its header, and its name if another header has it."""
    head = tar.Header.parse(block)
    if not head.is_regular or head.num_bytes != num_bytes:
        raise ValueError(f"expected the header of a file of {num_bytes} bytes, found {head}: delete the index")
    return split_name((name or head.name).decode(errors="surrogateescape"))
