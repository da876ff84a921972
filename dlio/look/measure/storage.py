"""What storage gives and takes: bytes per second of one node, past the page cache."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlio.io import files
from dlio.io.filesystems import filesystem_of

SECONDS = 3.0
MOST_BYTES = 1 << 30
_BLOCK_BYTES = 8 << 20
_THREADS = 8  # as many files are staged at a time


def read_rate(paths: Sequence[Path]) -> tuple[float, int]:
    """Returns at which rate these files are read, several at a time, and how many bytes were read.

    Raises:
        StorageError: a file cannot be read.
    """
    began = time.perf_counter()
    until, most = began + SECONDS, MOST_BYTES // _THREADS
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="dlio-bench") as pool:
        lanes = [paths[lane::_THREADS] for lane in range(_THREADS)]
        num_bytes = sum(pool.map(lambda lane: _read(lane, until, most), lanes))
    return num_bytes / (time.perf_counter() - began), num_bytes


def _read(paths: Sequence[Path], until: float, most: int) -> int:
    buffer, total = bytearray(_BLOCK_BYTES), 0
    for path in paths:
        with files.storage_errors("read", path), path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while (count := file.readinto(buffer)) and time.perf_counter() < until and total < most:
                total += count
            total += count or 0
        if time.perf_counter() >= until or total >= most:
            break
    return total


def write_rate(folder: Path) -> tuple[float, float]:
    """Returns at which rates a file is written to a folder, to its disk, and read again; the file is removed.

    Raises:
        StorageError: it cannot be written.
    """
    block, most = os.urandom(_BLOCK_BYTES), min(MOST_BYTES, filesystem_of(folder).free_bytes // 4)
    with files.storage_errors("write", folder), tempfile.NamedTemporaryFile(dir=folder, prefix=".dlio-bench-") as file:
        began, written = time.perf_counter(), 0
        while written < most and time.perf_counter() - began < SECONDS:
            written += os.write(file.fileno(), block[: most - written])
        os.fsync(file.fileno())
        rate = written / (time.perf_counter() - began)
        return rate, read_rate([Path(file.name)])[0]
