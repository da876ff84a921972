"""Files below a URL (`s3://`, `gs://`, `https://` and others that fsspec knows).

A failed request is repeated after growing pauses. Only object stores are written to: there a file is seen only when it
is whole. User and password of a web server are taken out of the URL at once,
so that no other package can print them.
"""

from __future__ import annotations

import errno
import gc
import random
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from dlio.errors import MissingPackageError, StorageError, UsageError, needs_package, requirements
from dlio.io import answers
from dlio.io.answers import listings
from dlio.urls import is_unclear, parted, shown, without_credentials

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
TRIES = 6
_CONNECTIONS = 64  # to a bucket, instead of 10: 3,000 requests a second at 20 ms each
_STORES = ("s3", "s3a", "gs", "gcs")
_FIRST_PAUSE_SECONDS = 0.2  # then twice as long each time: 6 s in all
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, StorageError)  # trying again does not help


class RemoteFiles:
    """The files below a URL; safe for several threads.

    Args:
        url: of a folder. Keys and endpoints come from the environment or fsspec's configuration.
        is_alone: whether its connections are its own, so that `close` ends them; else they are kept for this process.

    Raises:
        StorageError, UsageError, MissingPackageError: it cannot be opened, or is not the URL of a folder.
    """

    def __init__(self, url: str, *, is_alone: bool = False) -> None:
        url = url.rstrip("/")
        self._shown = shown(url)
        self._url = url
        self.is_web = url.lower().startswith(("http://", "https://"))
        bare, user, password = parted(url)
        self._login = unquote(f"{user}:{password}", errors="surrogateescape") if self.is_web and user + password else ""
        self._file_system, self._root = _open(bare if self.is_web else url, url, is_alone)

    def __str__(self) -> str:
        return self._shown

    def fetch(self, name: str, limit: int, span: tuple[int, int] | None = None, version: str = "") -> bytes:
        """Returns a file or a span of it, at most `limit` + 1 bytes.

        Raises:
            StorageError: it cannot be read, or has another version than the one given; the errno is ENOENT if it is not
                there, EACCES if it is denied.
        """
        request = partial(answers.at_most, self._file_system, self._path(name), limit, span, self._login, version)
        return self._ask(name, request)

    def state(self, name: str) -> answers.State:
        """Returns what the server reports about a file; raises as `fetch`, and if the server answers no ranges."""
        return self._ask(name, lambda: answers.state_of(self._file_system, self._path(name), self._login))

    def _path(self, name: str) -> str:
        return f"{self._root}/{quote(name) if self.is_web else name}"

    def put(self, name: str, content: Path | bytes) -> None:
        """Writes a file of an object store: a copy of another one, or some bytes.

        Raises:
            StorageError: it cannot be written; if there was one of this name it is still there.
        """
        path = f"{self._root}/{name}"
        self._ask(name, lambda: answers.sent(self._file_system, path, content), "write")

    def remove(self, name: str) -> None:
        """Removes a file, which may be missing already; raises StorageError if that is refused."""
        try:
            self._ask(name, lambda: self._file_system.rm_file(f"{self._root}/{name}"), "remove")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise

    def drop_unfinished(self) -> None:
        """Gives up the parts of files that killed processes have begun to write, as far as the store allows that."""
        with suppress(Exception):
            answers.drop_unfinished(self._file_system, self._root)

    def close(self) -> None:
        """Ends the connections if they are its own: a fork would inherit them, and cannot close them."""
        self._file_system = None
        gc.collect()  # fsspec ends them when it is collected, and it refers to itself

    def folders(self) -> list[str]:
        """Returns the sorted names of the folders in the URL's; raises as `fetch`."""
        return sorted(name for name, entry in self._listed("", below=False) if entry["type"] == "directory")

    def names(self) -> list[str]:
        """Returns the sorted names of the files and folders in the URL's, none if it is missing; raises as `fetch`."""
        try:
            return sorted({name for name, _ in self._listed("", below=False)} - {""})
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return []
            raise

    def files_below(self, folder: str) -> list[tuple[str, listings.Entry]]:
        """Returns the files in a folder and below it: path below the URL, and fsspec's entry; raises as `fetch`."""
        return [(name, entry) for name, entry in self._listed(folder, below=True) if entry["type"] == "file"]

    def _listed(self, folder: str, below: bool) -> list[tuple[str, listings.Entry]]:
        path = f"{self._root}/{quote(folder) if self.is_web else folder}".rstrip("/")
        entries = self._ask(folder, lambda: listings.listed(self._file_system, path, below=below))
        names = [entry["name"].removeprefix(self._root).strip("/") for entry in entries]
        return list(zip(map(unquote, names) if self.is_web else names, entries, strict=True))

    def _ask(self, name: str, request: Callable[[], T], verb: str = "read") -> T:
        try:
            return _persistent(request)
        except Exception as error:
            problem = f"cannot {verb} {self._shown}/{name}: {_reason(error, self._url)}"
            number = _number(error)
        # Raised here, since an exception from a package may hold the password and would be printed as the cause.
        raise StorageError(number, problem) if number else StorageError(problem)


def check_writable(url: str) -> None:
    """Raises UsageError if this is not the URL of an object store that dlio writes to."""
    if url.partition("://")[0].lower() not in _STORES:
        raise UsageError(
            f"dlio writes to folders and to object stores ({', '.join(f'{name}://' for name in _STORES)}), where a "
            f"file appears only when it is complete, not to {shown(url)}: give one of these"
        )


def fetch_file(url: str, limit: int) -> bytes:
    """Returns a file at a URL, at most `limit` + 1 bytes; raises as RemoteFiles and its `fetch`."""
    folder, _, name = url.rpartition("/")
    with closing(RemoteFiles(folder, is_alone=True)) as files:
        return files.fetch(unquote(name) if files.is_web else name, limit)


def _number(error: Exception) -> int:
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT
    return errno.EACCES if isinstance(error, PermissionError) else 0


def _open(url: str, given: str, is_alone: bool) -> tuple[AbstractFileSystem, str]:
    """Returns fsspec's file system for a URL and the path in it; `given` is the URL with user and password.

    Raises:
        UsageError, MissingPackageError, StorageError: as `RemoteFiles`.
    """
    with needs_package("fsspec", "remote", "a data set at a URL"):
        from fsspec.config import conf
        from fsspec.core import url_to_fs
    _check(given)
    try:
        configured = (conf.get(name, {}).get("config_kwargs") for name in ("s3a", "s3"))  # the former wins in fsspec
        options = {"config_kwargs": {"max_pool_connections": _CONNECTIONS} | (next(filter(None, configured), {}))}
        of_store = options if url.lower().startswith("s3") else {}
        file_system, root = url_to_fs(url, skip_instance_cache=is_alone, **of_store)
    except Exception as error:
        reason, kind = _reason(error, given), type(error)
    else:
        return file_system, str(root).rstrip("/")
    if issubclass(kind, ImportError):
        raise MissingPackageError(f"{shown(given)}: {reason}; s3 and https: pip install {requirements('remote')}")
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
            f"{shown(url)}: a bucket's URL holds no keys: give them with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or by a profile"
        )


def _reason(error: Exception, url: str) -> str:
    """Returns the text of an error without the password in `url`."""
    if isinstance(error, TimeoutError):
        idle, total = answers.IDLE_SECONDS, answers.TOTAL_SECONDS
        return f"its server sent nothing for {idle:g} s, or not all of it within {total:g} s"
    return without_credentials(str(error), url) or type(error).__name__


def _persistent(request: Callable[[], T]) -> T:
    """Returns the answer to a request, which is repeated if it fails, after pauses that double and vary by half.

    Raises:
        Exception: the request failed for a permanent reason, or `TRIES` times.
    """
    tries = 0
    while True:
        try:
            return request()
        except Exception as error:  # each protocol's package has its own exceptions
            tries += 1
            if isinstance(error, _FINAL) or tries == TRIES:
                raise
            time.sleep(_FIRST_PAUSE_SECONDS * 2**tries * random.uniform(0.25, 0.75))
