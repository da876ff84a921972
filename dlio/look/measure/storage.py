"""What storage gives and takes: bytes per second of one node, past the page cache."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import REQUEST_BYTES, fetch_range
from dlio.dataset.shard import files_of
from dlio.io import files
from dlio.io.filesystems import filesystem_of
from dlio.io.ground import check_ground
from dlio.io.remote_files import RemoteFiles
from dlio.io.threads import Threads
from dlio.pack.prefetch import blocks_at

SECONDS = 3.0
MOST_BYTES = 1 << 30
_THREADS = 8  # as many files are staged at a time
_RANGES = 24  # three of each file


def read_rate(paths: Sequence[Path]) -> tuple[float, int]:
    """Returns the rate at which files are read, several at a time, and how many bytes; raises StorageError."""
    began = time.perf_counter()
    until, most = began + SECONDS, MOST_BYTES // _THREADS
    with Threads(_THREADS, "dlio-bench") as pool:
        cuts = -(-_THREADS // max(1, len(paths)))  # fewer files than threads are read in parts, side by side
        parts = [(path, part / cuts, (part + 1) / cuts) for path in paths for part in range(cuts)]
        lanes = [parts[lane::_THREADS] for lane in range(_THREADS)]
        num_bytes = sum(pool.each(lambda lane: _read(lane, until, most), lanes))
    return num_bytes / (time.perf_counter() - began), num_bytes


def url_rate(manifest: Manifest) -> tuple[float, int]:
    """Returns the rate at which a data set at a URL is read in ranges, several at a time, and how many bytes were read.

    Raises:
        StorageError: a file cannot be read.
    """
    files = RemoteFiles(manifest.url)
    sizes = ((file.name, file.num_bytes) for file in files_of(manifest.shards))
    ranges = ((name, at, min(at + REQUEST_BYTES, end)) for name, end in sizes for at in range(0, end, REQUEST_BYTES))

    def read(numbered: tuple[int, tuple[str, int, int]]) -> int:
        number, part = numbered
        is_wanted = number < _RANGES or time.perf_counter() < began + SECONDS  # a busy machine has a rate, too
        return len(fetch_range(files, *part)) if is_wanted else 0

    with Threads(_RANGES, "dlio-bench") as pool:
        began = time.perf_counter()
        num_bytes = sum(pool.each(read, enumerate(islice(ranges, -(-MOST_BYTES // REQUEST_BYTES)))))
    return num_bytes / (time.perf_counter() - began), num_bytes


def bring(manifest: Manifest, folder: Path) -> Manifest:
    """Copies a data set at a URL to a folder, and returns its manifest there; raises StorageError."""
    origin = RemoteFiles(manifest.url)
    for file in files_of(manifest.shards):
        path = folder / file.name
        with files.storage_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as copy:
                copy.writelines(blocks_at(origin, file))
    return replace(manifest, root=folder, url="")


def _read(parts: Sequence[tuple[Path, float, float]], until: float, most: int) -> int:
    """Reads parts of files, each from a share of its file's bytes to another; returns how many bytes were read."""
    view, total = memoryview(bytearray(files.READ_BYTES)), 0
    for path, first, last in parts:
        with files.opened_regular(path) as file:
            size = os.fstat(file).st_size
            at, end = int(size * first), int(size * last)
            os.posix_fadvise(file, at, end - at, os.POSIX_FADV_DONTNEED)
            while at < end and (count := os.preadv(file, [view[: end - at]], at)):
                at, total = at + count, total + count
                if time.perf_counter() >= until or total >= most:
                    break
        if time.perf_counter() >= until or total >= most:
            break
    return total


def write_rate(folder: Path) -> tuple[float, float]:
    """Returns the rates at which a file is written to a folder, to its disk, and read again; the file is removed.

    Raises:
        StorageError: it cannot be written.
    """
    check_ground(folder)
    block, most = os.urandom(files.READ_BYTES), min(MOST_BYTES, filesystem_of(folder).free_bytes // 4)
    with files.storage_errors("write", folder), tempfile.NamedTemporaryFile(dir=folder, prefix=".dlio-bench-") as file:
        began, written = time.perf_counter(), 0
        while written < most and time.perf_counter() - began < SECONDS:
            written += os.write(file.fileno(), block[: most - written])
        os.fsync(file.fileno())
        rate = written / (time.perf_counter() - began)
        return rate, read_rate([Path(file.name)])[0]
