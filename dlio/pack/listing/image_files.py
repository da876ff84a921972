"""Image files that a folder or a list names: their sizes, their versions, and reading them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from dlio import native
from dlio.dataset.sample_group import Pieces, SampleGroup
from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import SourceError
from dlio.pack import pace
from dlio.pack.inspect.image_header import LARGE_BYTES, check_large
from dlio.pack.listing.base import Column, Listing, Numbers
from dlio.pack.listing.image_objects import NOMINAL_BYTES, image_object_reader
from dlio.pack.listing.keys import Keys
from dlio.pack.listing.lists import Listed, ListPath
from dlio.pack.prefetch import Prefetcher, side_by_side
from dlio.urls import is_url

Label = TypeVar("Label")
EXACT_FILES = 8192  # the mean over this many is within 2% of the true mean if sizes vary as much as their mean
_LEAST_ROOM = 1 << 16
_LOOKS = 4  # files that one thread stats in a row: handing over each would take longer than the stat itself
_GROUPED_BYTES = 16 << 10  # the largest mean size of files that are read in groups; to copy larger ones takes longer
_GROUP_BYTES = 1 << 20  # of one group
_USUAL_SIZES, _MOST_ROOM = 4, 4 << 20  # sizes may be those of other files: 4 times the mean holds most files
_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """A source of image files, in a folder or at a URL; a sample has what the listing knows of it, and its image.

    Attributes:
        name, path: see `Source`.
        folder: the folder or URL below which keys are paths; see `FileSource`.
        listing: returns all images; picklable.
    """

    name: str
    path: ListPath
    folder: str | Path = field(repr=False)  # a URL may hold a password
    listing: Callable[[], Listing] = field(repr=False)

    def sizes(self, listing: Listing) -> Numbers | None:
        """Returns the exact size of each image, in bytes, 0 for a missing one; None at a URL."""
        return None if is_url(self.folder) else exact_states(self.folder, listing.keys)[0]

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image."""
        return (image_object_reader if is_url(self.folder) else image_file_reader)(str(self.folder), listing)


@contextmanager
def image_file_reader(root: str | Path, listing: Listing) -> Iterator[ImageFileReader]:
    """Gives a function that reads image files; keys are paths below `root`, labels are in the listing."""
    folder, num_bytes, pieces = str(root), listing.num_bytes.tolist(), listing.keys.pieces
    usual = min(_USUAL_SIZES * sum(num_bytes) // max(1, len(num_bytes)), _MOST_ROOM)
    least = max(usual, _LEAST_ROOM)

    def begin(index: int) -> bytes | LongFile:
        return begin_file(path_below(folder, keys[index]), _room(num_bytes[index], least))

    def begin_group(indices: range) -> Pieces | list[bytes | LongFile | Exception]:
        names = pieces.take(slice(indices.start, indices.stop))
        data, bounds, unusual = native.read_files(folder, names.data, names.bounds, least, _GROUP_BYTES)
        found = Pieces(data, bounds)
        if not unusual:
            return found
        begun: list[bytes | LongFile | Exception] = list(found)
        for row, error, descriptor in unusual:
            path, head = path_below(folder, keys[indices[row]]), data[bounds[row] : bounds[row + 1]]
            problem = OSError(error, os.strerror(error))
            begun[row] = _unreadable(path, problem) if error else LongFile(path, descriptor, head)
        return begun

    is_small = usual < _USUAL_SIZES * _GROUPED_BYTES and native.available and not pace.is_limited()
    is_small &= sys.getfilesystemencoding() == "utf-8"  # else a name is not the bytes of its key
    sizes, group = (lambda index: max(num_bytes[index], least // 2)), begin_group if is_small else None
    keys = listing.keys if is_small else list(listing.keys)  # a group has all of its keys, not one
    with Prefetcher(begin, sizes, len(keys), read_group=group) as begun:
        yield ImageFileReader(begun, keys, listing)


class ImageFileReader:
    """Reads the image files of a listing; a `GroupReader`, used by one thread."""

    def __init__(self, begun: Prefetcher[bytes | LongFile], keys: Sequence[str], listing: Listing) -> None:
        self._begun = begun
        self._pieces = listing.keys.pieces
        self._keys = keys
        self._columns = listing.known
        self._listing = listing

    def __call__(self, index: int) -> Sample:
        """Returns the sample in row `index`; raises SourceError."""
        image = self._begun(index)
        fields = {name: values[index] for name, values in self._columns.items()}
        return Sample(self._keys[index], fields | {"image": image if isinstance(image, bytes) else image.rest()})

    def group(self, index: int) -> SampleGroup | None:
        """Returns the samples from row `index` on that one call reads; None if they must be asked for one by one."""
        images = self._begun.several(index, Pieces)
        if images is None:
            return None
        rows, columns = slice(index, index + len(images)), self._listing.columns
        fields = {name: columns[name][rows] if name in columns else images for name in self._listing.schema}
        return SampleGroup(self._pieces.take(rows), fields)


def path_below(root: str, key: str) -> str:
    """Returns the path of the file that a list names `key`; an absolute path is not changed."""
    return key if key.startswith("/") else f"{root}/{key}"  # a Path takes ten times as long


def read_file(path: str) -> bytes:
    """Returns the content of a regular file, with one read if it is small.

    Raises:
        SourceError: it cannot be read, is a folder, a pipe or a device, or is large and not an image.
    """
    found = begin_file(path, _LEAST_ROOM)
    return found if isinstance(found, bytes) else found.rest()


def _room(num_bytes: int, least: int) -> int:
    """Returns the size of a file's first read: the whole file and one byte more, or only the head of a large file."""
    return max(num_bytes + 1, least) if num_bytes <= LARGE_BYTES else least


def begin_file(path: str, room: int) -> bytes | LongFile:
    """Returns the content of a regular file of fewer than `room` bytes, by one read, or the beginning of another file.

    Raises:
        SourceError: it cannot be read.
    """
    pace.spend(pace.FILE_OPERATIONS)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        try:
            data = os.read(descriptor, room)
        except BaseException:
            os.close(descriptor)
            raise
        if not 0 < len(data) < room:
            return LongFile(path, descriptor, data)
        os.close(descriptor)
    except OSError as error:
        raise _unreadable(path, error) from error
    pace.spend(0, len(data))
    return data


def _unreadable(path: str, error: OSError) -> SourceError:
    return SourceError(f"cannot read {path}: {error.strerror}: check that it exists and that you may read it")


class LongFile:
    """An open file whose beginning was read. Its type and size are looked up only now, to save time.

    A file that is read ahead takes only this much memory until its turn.
    """

    def __init__(self, path: str, descriptor: int, data: bytes) -> None:
        self._path = path
        self._descriptor = descriptor
        self._data = data

    def rest(self) -> bytes:
        """Returns the content of the file, and closes it; raises as `read_file`."""
        try:
            data = _read_on(self._descriptor, self._data, self._path)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        finally:
            self.close()
        pace.spend(0, len(data))
        return data

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # then `os` may have lost its names, and the system closes the file
            self.close()


def _read_on(descriptor: int, data: bytes, path: str) -> bytes:
    """Returns `data` and the rest of the file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"cannot read {path}: it is not a regular file: remove it from the input")
    try:
        check_large(lambda: data, status.st_size)
    except SourceError as error:
        raise SourceError(f"cannot pack {path}: {error}") from None
    blocks, left = [data], status.st_size - len(data)
    while left > 0 and (block := os.read(descriptor, left)):
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def image_file_listing(
    root: str | Path,
    listed: Listed[Label],
    labels: Column | None,
    class_names: tuple[str, ...],
    fields: Mapping[str, Column] = MappingProxyType({}),
) -> Listing:
    """Returns the listing of image files at `root / name`; labels: int64 or float32 of shape (n, ...), or None.

    Size and version of files at a URL are not looked up: that would be another request for each.
    """
    keys, columns = Keys.of(listed.names), ({} if labels is None else {"label": labels}) | dict(fields)
    sizes, versions = (np.full(len(keys), NOMINAL_BYTES), None) if is_url(root) else file_states(root, keys)
    schema = Schema((("image", Field("bytes")), *((name, _field(each)) for name, each in columns.items())), class_names)
    return Listing(schema, keys, sizes, columns, versions=versions, refused=listed.refused)


def _field(column: Column) -> Field:
    return Field("str") if column.dtype.kind == "U" else Field(column.dtype.name, column.shape[1:])


def file_state(path: str) -> tuple[int, int]:
    """Returns a file's size in bytes and its version.

    Both are 0 for a missing file, and the size of a folder, a pipe or a device is 0: reading will report them.
    """
    pace.spend(1)
    try:
        status = os.stat(path)  # noqa: PTH116  Path.stat takes four times as long
    except OSError:
        return 0, 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0, version_of(status.st_mtime_ns)


def version_of(*times: int) -> int:
    """Returns the version of an input whose files were changed at these times, in ns: their sum, cut to 63 bits."""
    return sum(times) & _INT64


def file_states(root: str | Path, keys: Keys) -> tuple[Numbers, Numbers]:
    """Returns sizes in bytes and versions of the files `root / key`, int64 of shape (n,), exact for `EXACT_FILES`.

    Of more files, only every second, third and so on is looked up, and the files after it count as the same. A look
    costs as much as reading a small file, and on a shared file system a round trip to the server. So some changes of
    a file stay unnoticed.
    """
    return _states(root, keys, max(1, -(-len(keys) // EXACT_FILES)))


def exact_states(root: str | Path, keys: Keys) -> tuple[Numbers, Numbers]:
    """Returns the exact sizes, and times of the last change in ns, of the files `root / key`; 0 for a missing one."""
    return _states(root, keys, 1)


def _states(root: str | Path, keys: Keys, step: int) -> tuple[Numbers, Numbers]:
    folder = str(root)
    numbers = range(0, len(keys), step)
    groups = [numbers[first : first + _LOOKS] for first in range(0, len(numbers), _LOOKS)]

    def look(group: range) -> list[tuple[int, int]]:
        return [file_state(path_below(folder, key)) for key in keys[group.start : group.stop : step]]

    looked = chain.from_iterable(chain.from_iterable(side_by_side(look, groups)))
    states = np.fromiter(looked, dtype="int64", count=2 * len(numbers)).reshape(-1, 2)
    sizes, versions = np.repeat(states.T, step, axis=1)[:, : len(keys)]
    return sizes, versions
