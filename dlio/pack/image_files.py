"""Image files that a folder or a list names: finding out their sizes, and reading them."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.errors import SourceError
from dlio.pack.keys import Keys
from dlio.pack.large import LARGE_BYTES, check_large
from dlio.pack.listing import Listing
from dlio.sample import IMAGE_CLASSIFICATION, Field, Sample, Schema

if TYPE_CHECKING:
    import numpy as np

    from dlio.pack.listed import Listed

    Array = np.ndarray[Any, Any]

EXACT_FILES = 8192  # a mean over as many is within 2% of the true one where sizes vary as much as their mean
_LEAST_ROOM = 1 << 16
_INT64 = (1 << 63) - 1


@contextmanager
def image_file_reader(root: Path, listing: Listing) -> Iterator[Callable[[int], Sample]]:
    """Gives what reads image files whose paths below `root` are their keys, and whose labels are in the listing."""
    folder, keys, num_bytes = str(root), list(listing.keys), listing.num_bytes.tolist()
    columns = {
        name: values.tolist() if getattr(values, "ndim", 1) == 1 else values for name, values in listing.columns.items()
    }

    def read(index: int) -> Sample:
        fields: dict[str, Any] = {name: values[index] for name, values in columns.items()}
        fields["image"] = read_file(path_below(folder, keys[index]), num_bytes[index])
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
    room = max(num_bytes + 1, _LEAST_ROOM) if num_bytes <= LARGE_BYTES else _LEAST_ROOM
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        try:
            data = os.read(descriptor, room)
            return data if 0 < len(data) < room else _read_on(descriptor, data, path)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}: check that it is there and may be read") from error


def _read_on(descriptor: int, data: bytes, path: str) -> bytes:
    """Returns `data` and what follows it; what the file is, is asked only now, which saves time for the others."""
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
    for number in range(0, len(keys), step):
        num_bytes, version = file_state(path_below(folder, keys[number]))
        sizes.extend([num_bytes] * step)
        versions.extend([version] * step)
    return sizes[: len(keys)], versions[: len(keys)]
