"""A packed data set at a URL, read where it is: what a reader asks for is a range of an object.

A manifest that `load` has read from a URL names it. So shards are opened by such a manifest as by any other, and read
by `InPlace`, which asks for more at once where a reader continues.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import Lock

from dlio.dataset.location import names_url
from dlio.dataset.manifest import NAME, File, Manifest, Shard, from_bytes
from dlio.errors import ManifestError, StorageError
from dlio.io import arrivals, limits
from dlio.io.random_access import Numbers
from dlio.io.remote_files import RemoteFiles

REQUEST_BYTES = 4 << 20  # an object store answers within 30 ms and sends 80 MB/s: half of the time is its answer's
_KEPT = 4  # the last spans of each open file


def load(dataset: str | PathLike[str] | Manifest) -> Manifest:
    """Returns the manifest of the data set in a folder or at a URL; or the one that is given.

    Raises:
        ManifestError, StorageError: as `Manifest.load`.
        UsageError, MissingPackageError: a URL of an unknown kind, or whose package is not installed.
    """
    if isinstance(dataset, Manifest):
        return dataset
    if not names_url(dataset):
        return Manifest.load(Path(dataset))
    url = os.fspath(dataset).rstrip("/").removesuffix(f"/{NAME}")
    return replace(fetch_manifest(RemoteFiles(url)), url=url)


def fetch_manifest(files: RemoteFiles) -> Manifest:
    """Returns the manifest of the data set whose files these are.

    Raises:
        ManifestError: it is missing or damaged.
        StorageError: it cannot be read.
    """
    try:
        data = files.fetch(NAME, limits.manifest_bytes())
    except StorageError as error:
        if error.errno == errno.ENOENT:
            raise ManifestError(f"{files}/{NAME} does not exist; give the URL of a packed data set") from error
        raise
    return from_bytes(data, Path(str(files)) / NAME)


def fetch_range(files: RemoteFiles, name: str, start: int, end: int, version: str = "") -> bytes:
    """Returns the bytes of a file from `start` to `end`.

    Raises:
        StorageError: it cannot be read, the server sends less or more, or another version than the one given.
    """
    data = files.fetch(name, end - start, (start, end), version)
    if len(data) != end - start:
        given = f"{len(data):,} bytes" if len(data) < end - start else "more"
        raise StorageError(
            f"{files}/{name} gave {given}, asked for {end - start:,} from {start:,} on: its length is not what its "
            "manifest says, or its server does not support range requests"
        )
    return data


def in_place(manifest: Manifest, shard: Shard) -> InPlace | None:
    """Returns what reads a shard of a data set at a URL; None if the data set is in a folder."""
    return InPlace(manifest, shard) if manifest.url else None


class InPlace:
    """A `dlio.io.arrivals.Arrivals` of one shard: its files never arrive, and are read by ranges."""

    def __init__(self, manifest: Manifest, shard: Shard) -> None:
        self._files = RemoteFiles(manifest.url)
        self._sizes = {manifest.root / file.name: file for file in shard.files}

    def prepare(self, names: Sequence[str]) -> Collection[str]:
        """Returns the names: all are read in place."""
        return names

    def complete(self, names: Sequence[str]) -> None:
        """Raises StorageError: no file becomes whole here."""
        raise StorageError(f"{self._files}/{names[0]} can only be read from a folder: copy it with dlio stage")

    def arrival(self, path: Path) -> arrivals.Arrival | None:
        """Returns a file of the shard, None for any other."""
        file = self._sizes.get(path)
        return None if file is None else FileInPlace(self._files, file)


class FileInPlace:
    """A file at a URL, as an `Arrival`: a read that continues where an earlier one ended brings a block.

    So does the first read of a small file.

    Attributes:
        num_bytes: the size of the file.
    """

    def __init__(self, files: RemoteFiles, file: File) -> None:
        self.num_bytes = file.num_bytes
        self._files, self._name = files, file.name
        self._spans: deque[tuple[int, int, Future[bytes]]] = deque(maxlen=_KEPT)
        self._lock = Lock()

    def fill(self, offsets: Numbers, sizes: Numbers, memory: memoryview, places: Numbers) -> None:
        """Reads ranges, which lie within the file, to places in memory."""
        for first, size, place in zip(offsets.tolist(), sizes.tolist(), places.tolist(), strict=True):
            start, end, data, is_asked = self._span(first, first + size)
            if not is_asked:
                self._ask(start, end, data)
            memory[place : place + size] = memoryview(data.result())[first - start : first - start + size]

    def _span(self, first: int, last: int) -> tuple[int, int, Future[bytes], bool]:
        """Returns a span that holds these bytes, its future content, and whether another thread has asked for it."""
        with self._lock:
            for start, end, data in self._spans:
                if start <= first and last <= end:
                    return start, end, data, True
            if self.num_bytes <= REQUEST_BYTES:
                first, end = 0, self.num_bytes
            else:
                goes_on = any(start <= first <= end for start, end, _ in self._spans)
                end = max(last, min(first + REQUEST_BYTES, self.num_bytes)) if goes_on else last
            self._spans.append((first, end, Future()))
            return *self._spans[-1], False

    def _ask(self, start: int, end: int, data: Future[bytes]) -> None:
        try:
            data.set_result(fetch_range(self._files, self._name, start, end) if end > start else b"")
        except BaseException as error:
            with self._lock:
                self._spans = deque((span for span in self._spans if span[2] is not data), maxlen=_KEPT)
            data.set_exception(error)

    def will_need(self, starts: Numbers, stops: Numbers) -> None:
        """Does nothing: what is needed is asked for when it is read."""

    def close(self) -> None:
        """Forgets what was read."""
        with self._lock:
            self._spans.clear()
