"""A data set at a URL (`s3://`, `gs://`, `https://` and what else fsspec knows), read in ranges.

Several ranges of a file are under way at once, since one request at a time is bound by its latency. A request that
fails is repeated, later each time; what it brings is checked against the file's digest in the end.
"""

from __future__ import annotations

import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dlio.errors import ManifestError, MissingPackageError, StorageError, UsageError, missing_package
from dlio.manifest import NAME, File, Manifest, parse_whole
from dlio.stage.access import PRIVATE, Access

_AHEAD = 3  # ranges under way for each of the eight files: with blocks of 4 MiB, 96 MiB
_TRIES = 6
_FIRST_PAUSE_SECONDS = 0.2  # then twice as long each time: 6 s in all
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)  # trying again does not help


class Remote:
    """A data set at a URL.

    Args:
        url: of the folder that holds manifest.jsonl; what the file system needs besides (keys, an endpoint) comes from
            the environment or fsspec's configuration.

    Raises:
        ManifestError, StorageError, UsageError, MissingPackageError: as `source_of` says.
    """

    def __init__(self, url: str) -> None:
        self._shown = re.sub(r"//[^/@]*@", "//", url.rstrip("/"))  # without user and password
        self._file_system, self._root = _open(url.rstrip("/"), self._shown)
        self._quotes = url.lower().startswith("http")
        self.manifest = self._load()

    def __str__(self) -> str:
        return self._shown

    def name_of(self, file: File) -> str:
        """Returns the URL of a file, without user and password."""
        return f"{self._shown}/{file.name}"

    def access(self, file: File | None) -> Access:
        """Returns that nobody else may read it: a URL does not tell who may."""
        return PRIVATE

    def blocks(self, file: File, start: int, buffer: bytearray) -> Iterator[memoryview]:
        """Yields a file's bytes; as `Source` says."""
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
        """Fills `target`; as `Source` says."""
        target[:] = self._range(file, offset, offset + len(target))

    def _range(self, file: File, start: int, end: int) -> bytes:
        if end - start < file.num_bytes and not self._answers_ranges:
            raise StorageError(
                f"{self.name_of(file)}: its server answers no ranges, and would send the whole file for each of its "
                "blocks: serve the data set by one that does"
            )
        data = self._fetch(file.name, start, end)
        if len(data) != end - start:
            raise StorageError(
                f"{self.name_of(file)} gave {len(data):,} bytes, asked for {end - start:,} from {start:,} on: "
                "its length is not what its manifest says"
            )
        return data

    @cached_property
    def _answers_ranges(self) -> bool:
        return len(self._fetch(NAME, 0, 1)) == 1

    def _fetch(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        path = f"{self._root}/{quote(name) if self._quotes else name}"
        read = partial(self._file_system.cat_file, path, start=start, end=end)
        return bytes(_persistent(f"{self._shown}/{name}", read))

    def _load(self) -> Manifest:
        path = Path(self._shown) / NAME
        try:
            text = self._fetch(NAME).decode()
        except UnicodeDecodeError as error:
            raise ManifestError(f"{self}/{NAME} is no text: {error}: restore the file or pack it anew") from error
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise ManifestError(f"{self}/{NAME} does not exist; give the URL of a packed data set") from error
            raise
        return parse_whole(text.splitlines(keepends=True), path)


def _open(url: str, shown: str) -> tuple[Any, str]:
    """Returns fsspec's file system of a URL and the path in it.

    Raises:
        UsageError, MissingPackageError, StorageError: as `source_of` says.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise missing_package("fsspec", "remote", "a data set at a URL") from error
    if "?" in url or "#" in url:
        raise UsageError(f"{shown} is no folder's URL: give one without ? and #")
    try:
        file_system, root = url_to_fs(url)
    except ImportError as error:
        raise MissingPackageError(f"{shown}: {error}; dlio[remote] has what s3 and https need") from error
    except ValueError as error:
        raise UsageError(f"{shown}: {error}") from error
    return file_system, str(root).rstrip("/")


def _persistent(name: str, request: Callable[[], bytes]) -> bytes:
    """Returns what a request brings, which is repeated when it fails, after pauses that double and vary by half.

    Raises:
        StorageError: it failed each time, or for a reason that stays.
    """
    tries = 0
    while True:
        try:
            return request()
        except Exception as error:  # each protocol's package has exceptions of its own
            tries += 1
            if isinstance(error, _FINAL) or tries == _TRIES:
                raise StorageError(f"cannot read {name}: {str(error) or type(error).__name__}") from error
            time.sleep(_FIRST_PAUSE_SECONDS * 2**tries * random.uniform(0.25, 0.75))
