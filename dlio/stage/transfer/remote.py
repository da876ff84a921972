"""A data set, or any file, at a URL (`s3://`, `https://` and others that fsspec knows) as a source.

Ranges of a URL are requested side by side to hide the latency, and a failed request is repeated after growing pauses.
User and password of a web server are taken out of the URL at once, so that no other package can print them.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from dlio.cached import cached_property
from dlio.dataset import tree
from dlio.dataset.location import TREE_SUFFIX
from dlio.dataset.manifest import NAME, File
from dlio.dataset.remote import fetch_manifest, fetch_range
from dlio.errors import StorageError, UsageError
from dlio.io.remote_files import RemoteFiles
from dlio.rights.access import PRIVATE, Access
from dlio.stage.copies.tree import check_reserved


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
        self.manifest = fetch_manifest(self._files)

    def __str__(self) -> str:
        return str(self._files)

    def name_of(self, file: File) -> str:
        """Returns the URL of a file, without user and password."""
        return f"{self}/{file.name}"

    def access(self, file: File | None) -> Access:
        """Returns that only this user may read it, since a URL does not say who may."""
        return PRIVATE

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target`; see `StagingSource`."""
        self._check_ranges(file, len(target))
        target[:] = fetch_range(self._files, file.name, offset, offset + len(target))

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
        return len(self._files.fetch(NAME, 1, (0, 1))) == 1


class RemoteFile:
    """Any file at a URL, copied as it is; see `StagingSource`.

    The server names the version of its content (an ETag, or the time of its last change), which each request must meet.

    Args:
        url: as `Remote`; of the file.

    Raises:
        UsageError: it cannot be a file's.
        StorageError: it cannot be read; the errno is ENOENT if it is no file's. Or the server names no version, or
            answers no ranges.
        MissingPackageError: as `source_of`.
    """

    def __init__(self, url: str) -> None:
        folder, _, name = url.rpartition("/")
        self._files = RemoteFiles(folder)
        name = unquote(name) if self._files.is_web else name
        if name in ("", ".", "..") or not name.isprintable() or "/" in name:
            raise UsageError(f"{self._files}/{name} does not end with the name of a file")
        state = self._files.state(name)
        check_reserved(name)
        if not state.version:
            raise StorageError(
                f"{self._files}/{name}: its server gives neither an ETag nor the time of the last change, so a newer "
                "file "
                "would not be noticed: copy it to a folder first, and stage that"
            )
        entry = tree.Entry("file", name, PRIVATE.mode, state.time, 0, state.num_bytes)
        self._version, self._table_name = state.version, f"{name}{TREE_SUFFIX}"
        self._table = tree.encoded([entry], f"{self._files}/{name}", state.version)
        self.manifest = tree.manifest_of([entry], self._table, Path(str(self._files)))

    def __str__(self) -> str:
        return f"{self._files}/{self._table_name.removesuffix(TREE_SUFFIX)}"

    def name_of(self, file: File) -> str:
        """Returns the URL of the file, without user and password."""
        return f"the list of {self}" if file.name == self._table_name else str(self)

    def access(self, file: File | None) -> Access:
        """Returns that only this user may read it, since a URL does not say who may."""
        return PRIVATE

    def read_range(self, file: File, offset: int, target: memoryview) -> None:
        """Fills `target`; see `StagingSource`."""
        end = offset + len(target)
        if file.name == self._table_name:
            target[:] = self._table[offset:end]
        elif target:
            target[:] = fetch_range(self._files, file.name, offset, end, self._version)

    def close(self) -> None:
        """Does nothing, as `Remote.close`."""
