"""Image files that a folder or a list names: finding out their sizes, and reading them."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio import native
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Field, Sample, Schema
from dlio.errors import SourceError
from dlio.pack import pace
from dlio.pack.listing.base import Listing
from dlio.pack.listing.keys import Keys
from dlio.pack.listing.large import LARGE_BYTES, check_large
from dlio.pack.prefetch import reading_ahead, side_by_side

if TYPE_CHECKING:
    import numpy as np

    from dlio.pack.listing.lists import Listed

    Array = np.ndarray[Any, Any]

EXACT_FILES = 8192  # a mean over as many is within 2% of the true one where sizes vary as much as their mean
_LEAST_ROOM = 1 << 16
_LOOKS = 4  # by one thread, one after the other: to hand over each would take longer than the system's work for it
_GROUPED_BYTES = 16 << 10  # files that are larger on average take their time to be copied, not to be opened
_GROUP_BYTES = 256 << 10  # of one group
_USUAL_SIZES, _MOST_ROOM = 4, 4 << 20  # sizes may be those of other files: 4 means hold most files in one read
_INT64 = (1 << 63) - 1


@contextmanager
def image_file_reader(root: Path, listing: Listing) -> Iterator[Callable[[int], Sample]]:
    """Gives what reads image files whose paths below `root` are their keys, and whose labels are in the listing."""
    folder, keys, num_bytes = str(root), list(listing.keys), listing.num_bytes.tolist()
    columns = {
        name: values.tolist() if getattr(values, "ndim", 1) == 1 else values for name, values in listing.columns.items()
    }
    usual = min(_USUAL_SIZES * sum(num_bytes) // max(1, len(num_bytes)), _MOST_ROOM)

    least = max(usual, _LEAST_ROOM)

    def begin(index: int) -> bytes | LongFile:
        return begin_file(path_below(folder, keys[index]), _room(num_bytes[index], least))

    def begin_group(indices: range) -> list[bytes | LongFile | Exception]:
        paths = [path_below(folder, keys[index]) for index in indices]
        found = native.read_files(paths, least, _GROUP_BYTES)
        return [_begun(path, file) for path, file in zip(paths, found, strict=False)]

    is_small = usual < _USUAL_SIZES * _GROUPED_BYTES and native.available and pace.in_force() is None
    sizes, group = (lambda index: max(num_bytes[index], least // 2)), begin_group if is_small else None
    with reading_ahead(begin, sizes, len(keys), read_group=group) as begun:

        def read(index: int) -> Sample:
            fields: dict[str, Any] = {name: values[index] for name, values in columns.items()}
            image = begun(index)
            fields["image"] = image if isinstance(image, bytes) else image.rest()
            return Sample(keys[index], fields)

        yield read


def path_below(root: str, key: str) -> str:
    """Returns the path of the file that a list calls `key`; an absolute one stays as it is."""
    return key if key.startswith("/") else f"{root}/{key}"  # a Path takes ten times as long


def read_file(path: str, num_bytes: int = 0) -> bytes:
    """Returns the content of a regular file, in one read if it has `num_bytes` or less, and is not large.

    Raises:
        SourceError: it cannot be read, is a folder, a pipe or a device, or is large and no image.
    """
    found = begin_file(path, _room(num_bytes, _LEAST_ROOM))
    return found if isinstance(found, bytes) else found.rest()


def _room(num_bytes: int, least: int) -> int:
    """Returns how much is read of a file at once: all of it and a byte more, or the head of what is large."""
    return max(num_bytes + 1, least) if num_bytes <= LARGE_BYTES else least


def begin_file(path: str, room: int) -> bytes | LongFile:
    """Returns the content of a regular file that has fewer bytes than `room`, by one read, and else its beginning.

    Raises:
        SourceError: it cannot be read.
    """
    in_force = pace.in_force()
    if in_force is not None:
        in_force.take(pace.FILE_OPERATIONS)
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
    if in_force is not None:
        in_force.take(0, len(data))
    return data


def _begun(path: str, found: bytes | int | tuple[int, bytes]) -> bytes | LongFile | SourceError:
    """Returns a file that `native.read_files` has read, or the error of one that it could not."""
    if isinstance(found, bytes):
        return found
    if isinstance(found, int):
        return _unreadable(path, OSError(found, os.strerror(found)))
    return LongFile(path, *found)


def _unreadable(path: str, error: OSError) -> SourceError:
    return SourceError(f"cannot read {path}: {error.strerror}: check that it is there and may be read")


class LongFile:
    """The beginning of what may be a file, open: what it is is asked only now, which saves time for the others.

    Of files that are read ahead only this much is in memory until it is their turn.
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
        pace.take(0, len(data))
        return data

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _read_on(descriptor: int, data: bytes, path: str) -> bytes:
    """Returns `data` and what follows it."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"cannot read {path}: it is no regular file: remove it from the input")
    try:
        check_large(data, status.st_size)
    except SourceError as error:
        raise SourceError(f"cannot pack {path}: {error}") from None
    blocks, left = [data], status.st_size - len(data)
    while left > 0 and (block := os.read(descriptor, left)):
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def image_file_listing(root: Path, listed: Listed, labels: Array, class_names: tuple[str, ...]) -> Listing:
    """Returns the listing of image files at `root / name`; labels are int64 or float32, of shape (n, ...)."""
    keys = Keys.of(listed.names)
    if labels.dtype == "int64":
        schema = Schema(IMAGE_CLASSIFICATION.fields, class_names)
    else:
        schema = Schema((("image", Field("bytes")), ("label", Field("float32", labels.shape[1:]))), class_names)
    sizes, versions = file_states(root, keys)
    return Listing(schema, keys, sizes, {"label": labels}, versions=versions, refused=listed.refused)


def file_state(path: str) -> tuple[int, int]:
    """Returns a file's size in bytes and a version, 0 for one that is not there: reading it will say so."""
    pace.take(1)
    try:
        status = os.stat(path)  # noqa: PTH116  Path.stat takes four times as long
    except OSError:
        return 0, 0
    return status.st_size, version_of(status.st_mtime_ns)


def version_of(*times: int) -> int:
    """Returns the version of an input whose files were changed at these times, in ns: their sum, cut to an int64."""
    return sum(times) & _INT64


def file_states(root: Path, keys: Keys) -> tuple[array[int], array[int]]:
    """Returns sizes in bytes and versions of the files `root / key`, int64, exact for `EXACT_FILES` files.

    Of more files, every second, third and so on is looked at, and those after it are taken for the same: looking costs
    as much as reading a small file, and a round trip to the server where the file system is shared. So among more files
    some that were changed later stay unnoticed.
    """
    step = max(1, -(-len(keys) // EXACT_FILES))
    folder = str(root)
    sizes, versions = array("q"), array("q")
    numbers = range(0, len(keys), step)
    groups = [numbers[first : first + _LOOKS] for first in range(0, len(numbers), _LOOKS)]

    def look(group: range) -> list[tuple[int, int]]:
        return [file_state(path_below(folder, keys[number])) for number in group]

    for states in side_by_side(look, groups):
        for num_bytes, version in states:
            sizes.extend([num_bytes] * step)
            versions.extend([version] * step)
    return sizes[: len(keys)], versions[: len(keys)]
