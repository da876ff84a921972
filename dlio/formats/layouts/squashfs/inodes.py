"""The inodes of files, and where their data is. Layouts are in `tables.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlio.formats.layouts.squashfs import FILE, LONG_FILE, NO_FRAGMENT, STORED
from dlio.formats.layouts.squashfs.metadata import SUPERBLOCK_BYTES, Superblock, Table
from dlio.io.random_access import Numbers

_HEAD = np.dtype([("type", "<u2"), ("mode", "<u2"), ("owner", "<u4"), ("mtime", "<u4"), ("number", "<u4")])
_SHORT = np.dtype([*_HEAD.descr, ("start", "<u4"), ("fragment", "<u4"), ("offset", "<u4"), ("size", "<u4")])
_START = [("start", "<u8"), ("size", "<u8"), ("sparse", "<u8")]
_LONG = np.dtype([*_HEAD.descr, *_START, ("links", "<u4"), ("fragment", "<u4"), ("offset", "<u4"), ("xattr", "<u4")])
_MAX_RATIO = 1 << 10  # of a file to its bytes on disk; deflate reaches 1,032, and images 20
_FREE_BYTES = 64 << 20  # of a file, whatever its bytes on disk


def file_inodes(inodes: Table, at: Numbers, block_bytes: int) -> dict[str, Any]:
    """Returns the columns of the inodes of files at different places."""
    types = inodes.gather(at, "<u2")
    names = ("number", "start", "size", "fragment", "offset")
    columns: dict[str, Any] = {name: np.zeros(len(at), np.int64) for name in names}
    for kind, dtype in ((FILE, _SHORT), (LONG_FILE, _LONG)):
        chosen = types == kind
        rows = inodes.gather(at[chosen], dtype)
        for name in names:
            columns[name][chosen] = rows[name].astype(np.int64)  # 2**63 and above become negative
    heads = np.where(types == FILE, _SHORT.itemsize, _LONG.itemsize)
    columns["words_at"] = at + heads
    fragment, size = columns["fragment"], columns["size"]
    columns["fragment"] = np.where(fragment == NO_FRAGMENT, -1, fragment)
    columns["counts"] = np.where(fragment == NO_FRAGMENT, -(-size // block_bytes), size // block_bytes)
    wrong = ((types != FILE) & (types != LONG_FILE)) | (size < 0) | (columns["start"] < 0)
    wrong |= columns["counts"] > len(inodes.stream) // 4
    wrong |= columns["words_at"] + 4 * np.where(wrong, 0, columns["counts"]) > len(inodes.stream)
    _refuse(wrong, columns["number"], "is not that of a file in this image")
    if (heads + 4 * columns["counts"]).sum() > len(inodes.stream):
        raise ValueError("its files' inodes overlap")
    return columns


def file_places(inodes: Table, found: dict[str, Any], fragments: Numbers, superblock: Superblock) -> dict[str, Any]:
    """Returns where the uncompressed files are, and checks that all are within the data."""
    counts, size, fragment, offset = (found[name] for name in ("counts", "size", "fragment", "offset"))
    number, block_bytes, ends = found["number"], superblock.block_bytes, np.cumsum(counts)
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    words = inodes.gather(np.repeat(found["words_at"], counts) + 4 * within, "<u4").astype(np.int64)
    rest = np.minimum(block_bytes, np.repeat(size, counts) - within * block_bytes)
    differ, on_disk = (_sums(values, ends) for values in (words != (rest | STORED), words & STORED - 1))
    illegal = _sums((words >= STORED << 1) | (words & STORED - 1 > block_bytes), ends)
    data_end, rest = superblock.inode_table, size % block_bytes
    has_end = fragment >= 0
    wrong = (illegal > 0) | (on_disk > 0) & (
        (found["start"] < SUPERBLOCK_BYTES) | (found["start"] + on_disk > data_end)
    )
    wrong |= has_end & ((fragment >= len(fragments)) | (offset + rest > block_bytes))
    starts, ends_words = fragments[np.where(has_end & ~wrong, fragment, 0)].T if len(fragments) else (size * 0,) * 2
    end_bytes, end_is_stored = ends_words & STORED - 1, ends_words & STORED > 0
    wrong |= has_end & end_is_stored & (offset + rest > end_bytes)
    on_disk += np.where(has_end, end_bytes, 0)
    _refuse(wrong, number, "has data outside of the image's")
    _refuse(size > _FREE_BYTES + _MAX_RATIO * on_disk, number, "is far larger than its bytes in the image: too sparse")
    in_end = has_end & (counts == 0) & end_is_stored
    return {
        "start": np.where(in_end, starts + offset, found["start"]),
        "is_stored": in_end | ~has_end & (differ == 0),
    }


def _sums(values: NDArray[Any], ends: Numbers) -> Numbers:
    """Returns the sums of consecutive parts of `values`, which end at `ends`."""
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
    return np.diff(totals[ends], prepend=0)


def _refuse(wrong: NDArray[np.bool_], numbers: Numbers, problem: str) -> None:
    if wrong.any():
        raise ValueError(f"inode {numbers[np.flatnonzero(wrong)[0]]} {problem}")
