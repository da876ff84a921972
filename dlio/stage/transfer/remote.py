"""A data set at a URL (`s3://`, `gs://`, `https://` and others that fsspec knows), read in ranges.

Several ranges of a file are requested at once to hide the latency. A failed request is repeated after growing pauses.
The file's digest is checked in the end. User and password of a web server are taken out of the URL at once, so that no
other package can print them.
"""

from __future__ import annotations

import errno
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from dlio.dataset.manifest import NAME, File, Manifest, from_bytes
from dlio.errors import ManifestError, MissingPackageError, StorageError, UsageError, missing_package
from dlio.io import limits
from dlio.stage.cache.access import PRIVATE, Access
from dlio.stage.transfer import answers
from dlio.urls import is_unclear, parted, shown, without_credentials

_AHEAD = 3  # ranges under way for each of the eight files: with blocks of 4 MiB, 96 MiB
_TRIES = 6
_FIRST_PAUSE_SECONDS = 0.2  # then twice as long each time: 6 s in all
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, StorageError)  # trying again does not help


class Remote:
    """A data set at a URL.

    Args:
        url: of the folder that holds manifest.jsonl. Keys and endpoints come from the environment or fsspec's
            configuration.

    Raises:
        ManifestError, StorageError, UsageError, MissingPackageError: as `source_of`.
    """

    def __init__(self, url: str) -> None:
        url = url.rstrip("/")
        self._shown = shown(url)
        self._url = url
        self._is_web = url.lower().startswith(("http://", "https://"))
        bare, user, password = parted(url)
        self._login = (
            unquote(f"{user}:{password}", errors="surrogateescape") if self._is_web and user + password else ""
        )
        self._file_system, self._root = _open(bare if self._is_web else url, url)
        self.manifest = self._load()

    def __str__(self) -> str:
        return self._shown

    def name_of(self, file: File) -> str:
        """Returns the URL of a file, without user and password."""
        return f"{self._shown}/{file.name}"

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

    def _range(self, file: File, start: int, end: int) -> bytes:
        if end - start < file.num_bytes and not self._answers_ranges:
            raise StorageError(
                f"{self.name_of(file)}: its server answers no ranges, and would send the whole file for each of its "
                "blocks: serve the data set by one that does"
            )
        data = self._fetch(file.name, end - start, (start, end))
        if len(data) != end - start:
            given = f"{len(data):,} bytes" if len(data) < end - start else "more"
            raise StorageError(
                f"{self.name_of(file)} gave {given}, asked for {end - start:,} from {start:,} on: "
                "its length is not what its manifest says"
            )
        return data

    @cached_property
    def _answers_ranges(self) -> bool:
        return len(self._fetch(NAME, 1, (0, 1))) == 1

    def _fetch(self, name: str, limit: int, span: tuple[int, int] | None = None) -> bytes:
        """Returns a file or a span of it, at most `limit` + 1 bytes; raises StorageError."""
        path = f"{self._root}/{quote(name) if self._is_web else name}"
        read = partial(answers.at_most, self._file_system, path, limit, span, self._login)
        try:
            return _persistent(read)
        except Exception as error:
            problem = f"cannot read {self._shown}/{name}: {_reason(error, self._url)}"
            is_there = not isinstance(error, FileNotFoundError)
        # Raised here, since an exception from a package may hold the password and would be printed as the cause.
        raise StorageError(problem) if is_there else StorageError(errno.ENOENT, problem)

    def _load(self) -> Manifest:
        try:
            data = self._fetch(NAME, limits.manifest_bytes())
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise ManifestError(f"{self}/{NAME} does not exist; give the URL of a packed data set") from error
            raise
        return from_bytes(data, Path(self._shown) / NAME)


def _open(url: str, given: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URL and the path in it; `given` is the URL with user and password.

    Raises:
        UsageError, MissingPackageError, StorageError: as `source_of`.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise missing_package("fsspec", "remote", "a data set at a URL") from error
    _check(given)
    try:
        file_system, root = url_to_fs(url)
    except Exception as error:
        reason, kind = _reason(error, given), type(error)
    else:
        return file_system, str(root).rstrip("/")
    if issubclass(kind, ImportError):
        raise MissingPackageError(f"{shown(given)}: {reason}; dlio[remote] has what s3 and https need")
    if issubclass(kind, ValueError):
        raise UsageError(f"{shown(given)}: {reason}")
    raise StorageError(f"cannot read {shown(given)}: {reason}")


def _check(url: str) -> None:
    """Raises UsageError for a URL that is not a folder's, or whose password is ambiguous."""
    quoting = "write / ? # @ in a password as %2F %3F %23 %40"
    if "?" in url or "#" in url:
        raise UsageError(f"{shown(url)} is not the URL of a folder: give one without ? and #, and {quoting}")
    if is_unclear(url):
        raise UsageError(f"{shown(url)} has a second @, or a / in a password: {quoting}, and @ in a path as %40")
    if url.lower().startswith("s3") and parted(url)[2]:
        raise UsageError(
            f"{shown(url)}: a bucket's URL holds no keys: give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or by a profile"
        )


def _reason(error: Exception, url: str) -> str:
    """Returns the text of an error without the password in `url`."""
    if isinstance(error, TimeoutError):
        idle, total = answers.IDLE_SECONDS, answers.TOTAL_SECONDS
        return f"its server sent nothing for {idle:g} s, or not all of it within {total:g} s"
    return without_credentials(str(error), url) or type(error).__name__


def _persistent(request: Callable[[], bytes]) -> bytes:
    """Returns the answer to a request, which is repeated if it fails, after pauses that double and vary by half.

    Raises:
        Exception: the request failed for a permanent reason, or `_TRIES` times.
    """
    tries = 0
    while True:
        try:
            return request()
        except Exception as error:  # each protocol's package has exceptions of its own
            tries += 1
            if isinstance(error, _FINAL) or tries == _TRIES:
                raise
            time.sleep(_FIRST_PAUSE_SECONDS * 2**tries * random.uniform(0.25, 0.75))
