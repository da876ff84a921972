"""A data set at a URL (`s3://`, `gs://`, `https://` and others that fsspec knows), read in ranges.

Several ranges of a file are requested at once to hide the latency. A failed request is repeated after growing pauses.
The file's digest is checked in the end. User and password of a web server are taken out of the URL at once, so that no
other package can print them.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from dlio.dataset.manifest import NAME, File, Manifest, from_bytes
from dlio.errors import ManifestError, StorageError
from dlio.io import limits
from dlio.io.remote_files import RemoteFiles
from dlio.stage.cache.access import PRIVATE, Access

_AHEAD = 3  # ranges under way for each of the eight files: with blocks of 4 MiB, 96 MiB


class Remote:
    """A data set at a URL.

    Args:
        url: of the folder that holds manifest.jsonl. Keys and endpoints come from the environment or fsspec's
            configuration.

    Raises:
        ManifestError, StorageError, UsageError, MissingPackageError: as `source_of`.
    """

    def __init__(self, url: str) -> None:
        self._files = RemoteFiles(url)
        self.manifest = self._load()

    def __str__(self) -> str:
        return str(self._files)

    def name_of(self, file: File) -> str:
        """Returns the URL of a file, without user and password."""
        return f"{self}/{file.name}"

    def access(self, file: File | None) -> Access:
        """Returns that only this user may read it, since a URL does not say who may."""
        return PRIVATE

    def blocks(self, file: File, start: int, buffer: bytearray) -> Iterator[memoryview]:
        """Yields a file's bytes; see `StagingSource`."""
        step = len(buffer)
        under_way: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="dlio-range") as pool:
            for offset in range(start, file.num_bytes, step):
                under_way.append(pool.submit(self._range, file, offset, min(offset + step, file.num_bytes)))
                if len(under_way) == _AHEAD:
                    yield memoryview(under_way.popleft().result())
            while under_way:
                yield memoryview(under_way.popleft().result())

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target`; see `StagingSource`."""
        target[:] = self._range(file, offset, offset + len(target))

    def close(self) -> None:
        """Does nothing: connections are kept for the next requests."""

    def _range(self, file: File, start: int, end: int) -> bytes:
        if end - start < file.num_bytes and not self._answers_ranges:
            raise StorageError(
                f"{self.name_of(file)}: its server answers no ranges, and would send the whole file for each of its "
                "blocks: serve the data set by one that does"
            )
        data = self._files.fetch(file.name, end - start, (start, end))
        if len(data) != end - start:
            given = f"{len(data):,} bytes" if len(data) < end - start else "more"
            raise StorageError(
                f"{self.name_of(file)} gave {given}, asked for {end - start:,} from {start:,} on: "
                "its length is not what its manifest says"
            )
        return data

    @cached_property
    def _answers_ranges(self) -> bool:
        return len(self._files.fetch(NAME, 1, (0, 1))) == 1

    def _load(self) -> Manifest:
        try:
            data = self._files.fetch(NAME, limits.manifest_bytes())
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise ManifestError(f"{self}/{NAME} does not exist; give the URL of a packed data set") from error
            raise
        return from_bytes(data, Path(str(self)) / NAME)
