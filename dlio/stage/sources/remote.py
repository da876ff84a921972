"""A data set, or any file, at a URL (`s3://`, `https://` and others that fsspec knows) as a source.

Ranges of a URL are requested side by side to hide the latency, and a failed request is repeated after growing pauses.
User and password of a web server are taken out of the URL at once, so that no other package can print them.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from dlio.cached import cached_property
from dlio.dataset import tree
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.dataset.remote import fetch_manifest, fetch_range
from dlio.errors import StorageError, UsageError
from dlio.io.remote_files import RemoteFiles
from dlio.rights.access import PRIVATE, Access
from dlio.stage.copies.tree import check_reserved


class Remote:
    """A data set at a URL, or any file there, copied as it is; see `StagingSource`, `remote_set` and `remote_file`.

    The server names the version of a file's content (an ETag, or the time of its last change), which each request must
    meet; "" for a data set.
    """

    def __init__(self, files: RemoteFiles, manifest: Manifest, table: bytes = b"", version: str = "") -> None:
        """Takes the files of the URL's folder; of a single file also the list of it, and its version."""
        self._files, self.manifest, self._table, self._version = files, manifest, table, version

    def __str__(self) -> str:
        return f"{self._files}/{self.manifest.path.name}" if self._version else str(self._files)

    def _is_list(self, file: File) -> bool:
        return bool(self._version) and file.name == self.manifest.shards[0].files[0].name

    def name_of(self, file: File) -> str:
        """Returns the URL of a file, without user and password."""
        return f"the list of {self}" if self._is_list(file) else f"{self._files}/{file.name}"

    def access(self, file: File | None) -> Access:
        """Returns that only this user may read it, since a URL does not say who may."""
        return PRIVATE

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target`; see `StagingSource`."""
        end = offset + len(target)
        if self._is_list(file):
            target[:] = self._table[offset:end]
        elif target or not self._version:
            self._check_ranges(file, len(target))
            target[:] = fetch_range(self._files, file.name, offset, end, self._version)

    def close(self) -> None:
        """Does nothing: connections are kept for the next requests."""

    def _check_ranges(self, file: File, num_bytes: int) -> None:
        if num_bytes < file.num_bytes and not self._answers_ranges:
            raise StorageError(
                f"{self.name_of(file)}: its server does not support range requests, and would send the whole "
                "file for each of its blocks: serve the data set with one that does"
            )

    @cached_property
    def _answers_ranges(self) -> bool:
        return bool(self._version) or len(self._files.fetch(NAME, 1, (0, 1))) == 1


def remote_set(url: str) -> Remote:
    """Returns a data set at a URL.

    Args:
        url: of the folder that holds manifest.jsonl. Keys and endpoints come from the environment or fsspec's
            configuration.

    Raises:
        ManifestError, StorageError, UsageError, MissingPackageError: as `source_of`.
    """
    files = RemoteFiles(url)
    return Remote(files, fetch_manifest(files))


def remote_file(url: str) -> Remote:
    """Returns any file at a URL, as `remote_set`.

    Raises:
        UsageError: it cannot be a file's.
        StorageError: it cannot be read; the errno is ENOENT if it is no file's. Or the server names no version, or
            answers no ranges.
        MissingPackageError: as `source_of`.
    """
    folder, _, name = url.rpartition("/")
    files = RemoteFiles(folder)
    name = unquote(name) if files.is_web else name
    if name in ("", ".", "..") or not name.isprintable() or "/" in name:
        raise UsageError(f"{files}/{name} does not end with the name of a file")
    state = files.state(name)
    check_reserved(name)
    if not state.version:
        raise StorageError(
            f"{files}/{name}: its server gives neither an ETag nor the time of the last change, so a newer file would "
            "not be noticed: copy it to a folder first, and stage that"
        )
    entry = tree.Entry("file", name, PRIVATE.mode, state.time, 0, state.num_bytes)
    table = tree.encoded([entry], f"{files}/{name}", state.version)
    return Remote(files, tree.manifest_of([entry], table, Path(str(files))), table, state.version)
