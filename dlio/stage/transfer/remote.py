"""A data set at a URL (`s3://`, `https://` and others that fsspec knows) as a source.

Ranges of a URL are requested side by side to hide the latency, and a failed request is repeated after growing pauses.
User and password of a web server are taken out of the URL at once, so that no other package can print them.
"""

from __future__ import annotations

from dlio.cached import cached_property
from dlio.dataset.manifest import NAME, File
from dlio.dataset.remote import fetch_manifest, fetch_range
from dlio.errors import StorageError
from dlio.io.remote_files import RemoteFiles
from dlio.stage.copies.access import PRIVATE, Access


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
                "file for each of its blocks: serve the data set by one that does"
            )

    @cached_property
    def _answers_ranges(self) -> bool:
        return len(self._files.fetch(NAME, 1, (0, 1))) == 1
