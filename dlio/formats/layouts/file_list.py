"""The list of a shard whose samples are separate files, `NAME.list`: what there is of each file, column by column.

"dlio files 1\\n"     13 bytes
count                int64, little-endian: how many columns follow, 4 and one for each other field
sizes                count int64: the size of each column, in bytes
columns              each a `.npy`, for n files:
    sizes            int64, n: of each file, in bytes
    times            int64, n: when each was changed last, in ns; of shape (0,) if the samples have checksums
    ends             int64, n: where each name ends in `names`
    names            uint8: the paths, UTF-8, one after the other, below the folder of the files
    FIELD            n values of each field of the schema but the image, in the schema's order
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from dlio.dataset.schema import Array, Schema
from dlio.errors import CorruptRecordError, SchemaError, StorageError, corrupt_errors
from dlio.formats.payloads import npy
from dlio.io.files import fill, storage_errors
from dlio.io.random_access import Numbers, read_whole

SUFFIX = ".list"
FOLDER = "files"  # the link, next to the list, to the folder of the files
MOST_BYTES = (1 << 31) - 1  # of a file: it is read into memory as a whole
_MAGIC = b"dlio files 1\n"
_OF_EVERY_LIST = 4
_INT64 = (1 << 63) - 1
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO)


def large_field(schema: Schema) -> str:
    """Returns the one field that the files hold.

    Raises:
        SchemaError: the schema has not just one field of bytes, or another that is not of numbers of one shape.
    """
    held = [name for name in schema if str(schema[name]) == "bytes"]
    if len(held) != 1 or not all(schema[name].is_fixed for name in schema if name not in held):
        raise SchemaError(
            f"expected one field of bytes for the file, and numbers of one shape for the others: {schema}"
        )
    return held[0]


@dataclass(frozen=True, slots=True, eq=False)
class FileList:
    """See the module.

    Attributes:
        path: of the list.
        sizes, ends: int64 of shape (n,).
        times: int64 of shape (n,), or (0,).
        names: the paths in UTF-8.
        columns: of the other fields, in the schema's order.
    """

    path: Path
    sizes: Numbers
    times: Numbers
    ends: Numbers
    names: bytes
    columns: tuple[Array, ...]

    @classmethod
    def read(cls, path: Path, schema: Schema) -> FileList:
        """Returns the list in a file.

        Raises:
            CorruptRecordError: it is damaged, or does not fit the schema.
            SchemaError: as `large_field`.
            StorageError: it cannot be read.
        """
        held, data = large_field(schema), read_whole(path)
        with corrupt_errors(path, "the list of files is damaged: {}: index the folder again"):
            sizes, times, ends, names, *columns = map(npy.decode, _columns(data))
            kinds = [schema[name] for name in schema if name != held]
            found = cls(path, sizes, times, ends, names.tobytes(), tuple(columns))
            found._check([(kind.dtype, kind.fixed_shape) for kind in kinds])
        return found

    def _check(self, kinds: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """Raises ValueError for columns that do not fit each other, or fields of these types and shapes."""
        count, whole = len(self.sizes), np.dtype("int64")
        if any(each.dtype != whole or each.ndim != 1 for each in (self.sizes, self.times, self.ends)):
            raise ValueError("its sizes, times and ends are not whole numbers")
        if len(self.ends) != count or len(self.times) not in (0, count):
            raise ValueError(f"{count} sizes, {len(self.ends)} names, {len(self.times)} times")
        shapes = [(each.dtype.name, each.shape) for each in self.columns]
        if shapes != [(dtype, (count, *shape)) for dtype, shape in kinds]:
            raise ValueError(f"its fields are {shapes}, for {count} files")
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])
        if (np.diff(starts) <= 0).any() or starts[-1] != len(self.names):
            raise ValueError("the bounds of its names are not in order")
        if count and (self.sizes.min() < 0 or float(self.sizes.sum(dtype=np.float64)) > 2**62):
            raise ValueError("its sizes are below 0, or together too large")

    def to_bytes(self) -> bytes:
        """Returns the file."""
        names = np.frombuffer(self.names, np.uint8)
        arrays: list[Array] = [self.sizes, self.times, self.ends, names, *self.columns]
        columns = [npy.encode(each) for each in arrays]
        head = np.array([len(columns), *map(len, columns)], "<i8")
        return b"".join([_MAGIC, head.tobytes(), *columns])

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, index: int) -> str:
        """Returns the path of a file, below the folder of the files.

        Raises:
            CorruptRecordError: it points outside.
        """
        start = int(self.ends[index - 1]) if index else 0
        name = self.names[start : int(self.ends[index])].decode(errors="replace")
        if not is_inside(name):
            raise CorruptRecordError(self.path, f"the name {name!r} points outside the folder", record=index)
        return name

    def read_file(self, index: int, folder: str) -> bytes:
        """Returns the content of a file that is as it was when it was listed, as far as size and time tell.

        Raises:
            CorruptRecordError: it is missing, or has changed.
            StorageError: it cannot be read.
        """
        with self._opened(index, folder) as (path, descriptor):
            size = int(self.sizes[index])
            data = os.read(descriptor, size)
            while len(data) < size:  # a read is interrupted at 2 GiB, or the file was cut
                if not (more := os.read(descriptor, size - len(data))):
                    raise self._cut(index, path)
                data += more
        return data

    def fill(self, index: int, offset: int, target: memoryview, folder: str) -> None:
        """Fills `target` with a file's bytes from `offset` on; raises as `read_file`."""
        with self._opened(index, folder) as (path, descriptor):
            if fill(descriptor, offset, target):
                raise self._cut(index, path)

    @contextmanager
    def _opened(self, index: int, folder: str) -> Iterator[tuple[Path, int]]:
        """Gives the path and the descriptor of a file, which is as it was when it was listed."""
        path = Path(f"{folder}/{self.name(index)}")
        try:
            with storage_errors("read", path):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait
                try:
                    self._check_same(index, path, os.fstat(descriptor))
                    yield path, descriptor
                finally:
                    os.close(descriptor)
        except StorageError as error:
            if error.errno not in _GONE:
                raise
            problem = f"{os.strerror(error.errno or 0)}, though it existed when it was indexed"
            raise CorruptRecordError(path, f"{problem}: {_advice(Path(folder))}", record=index) from error

    def _check_same(self, index: int, path: Path, status: os.stat_result) -> None:
        size = int(self.sizes[index])
        if size > MOST_BYTES:
            problem = f"its list says that a file has {size:,} bytes, more than {MOST_BYTES:,}, the limit for an image"
            raise CorruptRecordError(path, f"{problem}: index again, which leaves it out", record=index)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise self._changed(index, path, f"it has {status.st_size:,} bytes, and had {size:,} when it was indexed")
        if len(self.times) and status.st_mtime_ns & _INT64 != self.times[index]:
            raise self._changed(index, path, "it was modified since it was indexed")

    def _cut(self, index: int, path: Path) -> CorruptRecordError:
        return self._changed(index, path, "it was truncated while it was read")

    def _changed(self, index: int, path: Path, problem: str) -> CorruptRecordError:
        return CorruptRecordError(path, f"{problem}: restore it, or index the folder again", record=index)


def _advice(folder: Path) -> str:
    """Returns what to do where a file is missing in `folder`."""
    if folder.is_dir():
        return "bring it back, or index again"
    where = f" to {folder.readlink()} is broken" if folder.is_symlink() else ", to the folder of the files, is lost"
    return f"the link {folder}{where}: bring the folder back, make the link again, or index again"


def is_inside(name: str) -> bool:
    """Returns whether a path stays below the folder that it is a path in."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts) and "\0" not in name


def _columns(data: bytes) -> list[memoryview]:
    """Returns the columns of a list; raises ValueError if it does not hold what its head says."""
    at = len(_MAGIC) + 8
    if not data.startswith(_MAGIC) or len(data) < at:
        raise ValueError("it does not begin with its magic number")
    count = int.from_bytes(data[at - 8 : at], "little")
    if not _OF_EVERY_LIST <= count <= (len(data) - at) // 8:
        raise ValueError(f"{count:,} columns")
    ends = np.cumsum(np.frombuffer(data, "<i8", count, at).astype(object)) + at + 8 * count
    starts = [at + 8 * count, *ends[:-1]]
    if ends[-1] != len(data) or any(start > end for start, end in zip(starts, ends, strict=True)):
        raise ValueError(f"its columns end at {ends[-1]:,}, and the file at {len(data):,}")
    return [memoryview(data)[start:end] for start, end in zip(starts, ends, strict=True)]
