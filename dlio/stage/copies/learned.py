"""Digests that are found while files are copied, since their source knows none.

`.dlio/digests` of a copy holds a line of JSON for each file, `["env/bin/python3.12", "xxh3-128:..."]`, written before
the file gets its name. So a process that continues the copy of a killed one knows the files that have a line, and
the manifest of a copy can be made again if it is damaged. The line of a file that may have bytes from another node
ends with `true`: they are compared before the copy is published (dlio/stage/meeting/agreeing.py). The lines of a group
of small files are written together, and its digest is over theirs (dlio/dataset/tree.py).

A file that comes in parts has a line before its digest is known: `["env/x", "", "<boot id>"]` once it is made, and
`["env/x", "", true]` before bytes of another node are written. So a later process of this boot that continues it
knows that all bytes are as they were read from the source. After a loss of power nobody knows that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from dlio.dataset.json_lines import dense
from dlio.dataset.manifest import File, Manifest
from dlio.dataset.shard import files_of
from dlio.dataset.tree import group_digest
from dlio.errors import DigestError, DlioError, StorageError
from dlio.io import files, limits, world
from dlio.stage.copies.base_folder import CONTROL

DIGEST_BYTES = 16  # of files.DEFAULT_DIGEST
_NAME = "digests"


class Learned:
    """The digests of the files of a copy; for any number of threads.

    Args:
        copy: the folder of the copy.
        groups: the files of each group by its name, which may stand wherever the name of a file does.
    """

    def __init__(self, copy: Path, groups: Mapping[str, Sequence[File]] | None = None) -> None:
        self._copy, self._path, self._groups = copy, copy / CONTROL / _NAME, groups or {}
        self._lock = world.lock()
        self._found: dict[str, str] = {}
        self._received, self._begun = set[str](), dict[str, str]()
        self._is_loaded = False
        self._file: FileIO | None = None

    def load(self) -> Mapping[str, str]:
        """Returns the digests by the files' names: of a published copy those of its manifest; raises StorageError."""
        with self._lock:
            return self._load()

    def _load(self) -> Mapping[str, str]:
        if self._is_loaded:
            return self._found
        self._is_loaded = True
        with suppress(DlioError):
            published = Manifest.load(self._copy)
            self._found.update((file.name, file.digest) for file in files_of(published.shards))
            return self._found
        with suppress(FileNotFoundError), files.storage_errors("read", self._path):
            if self._path.exists():
                self._found, self._received, self._begun = _parsed(
                    files.read_regular(self._path, limits.manifest_bytes())
                )
        return self._found

    def receives(self, name: str) -> None:
        """Notes that a file that gets its name later may have bytes from another node."""
        with self._lock:
            self._load()
            if name not in self._received:
                self._received.add(name)
                if name not in self._groups:
                    self._append(dense([name, "", True]) + b"\n")

    def begins(self, name: str) -> None:
        """Notes that an empty file was made, whose parts come one by one; raises StorageError."""
        with self._lock:
            self._load()
            self._received.discard(name)
            self._begun[name] = world.boot_id()
            self._append(dense([name, "", self._begun[name]]) + b"\n")

    def is_as_read(self, name: str) -> bool:
        """Returns whether all that is here of an unfinished file is surely as it was read from the source."""
        with self._lock:
            self._load()
            return self._begun.get(name) == world.boot_id() and name not in self._received

    def was_received(self, name: str) -> bool:
        """Returns whether a file may have bytes from another node; raises StorageError."""
        with self._lock:
            self._load()
            return not self._received.isdisjoint([name, *self.names_of(name)])

    def names_of(self, name: str) -> list[str]:
        """Returns the names of the files of a group, or that of a file."""
        return [file.name for file in self._groups[name]] if name in self._groups else [name]

    def get(self, name: str) -> str:
        """Returns the digest of a file; "" if it is not known; raises StorageError."""
        with self._lock:
            found = self._load()
            if name in self._groups and name not in found:
                digest = group_digest([found.get(each, "") for each in self.names_of(name)])
                self._found |= {name: digest} if digest else {}
            return found.get(name, "")

    def lacking(self, wanted: Sequence[File]) -> set[str]:
        """Returns the names of the files whose digests are not known at all; raises StorageError."""
        unknown = {file.name for file in wanted if not file.digest}
        return unknown.difference(self.load()) if unknown else unknown

    def packed(self, listed: Sequence[File]) -> bytes:
        """Returns the digests found of files, `DIGEST_BYTES` each; zeros for other files; raises StorageError."""
        digests = ("" if file.digest else self.get(file.name) for file in listed)
        return b"".join(bytes.fromhex(each[-2 * DIGEST_BYTES :]) or bytes(DIGEST_BYTES) for each in digests)

    def check(self, file: File, digest: str, source: Callable[[], str]) -> None:
        """Compares the digest of a file that gets its name next with the expected one, or notes it if none is known.

        Args:
            file, digest: the file, and the digest of its copy.
            source: returns the file's name at its source.

        Raises:
            DigestError: the file is damaged.
            StorageError: the digest cannot be written.
        """
        if not file.digest:
            self.note(file.name, [digest])
        elif digest != file.digest:
            raise DigestError(
                f"{source()} is damaged: expected the digest {file.digest}, found {digest}: pack it again"
            )

    def note(self, name: str, digests: Sequence[str]) -> None:
        """Notes the digest of a file, or those of a group's files, which are written already; raises StorageError."""
        names, more = self.names_of(name), [True] if name in self._received else []
        lines = b"".join(dense([*line, *more]) + b"\n" for line in zip(names, digests, strict=True))
        with self._lock:
            self._load()  # before the first line, else all lines are read once more
            self._append(lines)
            self._found.update(zip(names, digests, strict=True))
            if name in self._groups:
                self._found.pop(name, None)  # of an earlier try

    def _append(self, lines: bytes) -> None:
        with files.storage_errors("write", self._path):
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0, opener=_opener)  # noqa: SIM115  closed with this
                self._file.write(b"\n")  # a line that a crash has cut off ends here
            if self._file.write(lines) != len(lines):
                self._file.write(b"\n")  # a full disk: this line does not count, and the next one does

    def forget(self) -> None:
        """Removes all digests, so that every file of the copy is copied again."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file; nothing else may be called at the same time."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def applied(self, manifest: Manifest) -> Manifest:
        """Returns a manifest with the digests of all files.

        Raises:
            StorageError: one is not known.
        """
        if all(file.digest for file in files_of(manifest.shards)):
            return manifest
        found = self.load()
        shards = [
            shard.replace(
                files=tuple(
                    file if file.digest else file.replace(digest=found.get(file.name, "")) for file in shard.files
                )
            )
            for shard in manifest.shards
        ]
        if lacking := [file.name for file in files_of(shards) if not file.digest]:
            raise StorageError(
                f"{self._path} has no digest of {lacking[0]!r}, though it was copied: run dlio clean, then stage again"
            )
        return replace(manifest, shards=tuple(shards))


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _parsed(data: bytes) -> tuple[dict[str, str], set[str], dict[str, str]]:
    """Returns what all whole lines say: digests, which files were received, and in which boot others were begun."""
    found, received, begun = dict[str, str](), set[str](), dict[str, str]()
    for line in data.split(b"\n")[:-1]:
        with suppress(ValueError, TypeError, RecursionError):
            name, digest, *more = _decoded(line)
            if not (isinstance(name, str) and isinstance(digest, str)):
                continue
            (received.add if more == [True] else received.discard)(name)
            if digest.startswith(f"{files.DEFAULT_DIGEST}:"):
                found[name] = digest
            elif more and isinstance(more[0], str):
                begun[name] = more[0]
    return found, received, begun


def _decoded(line: bytes) -> Any:
    """Returns what a line of JSON says; raises ValueError, RecursionError."""
    try:
        return msgspec.json.decode(line)
    except ValueError:  # a file name may hold half a UTF-16 pair, which only json reads, in ten times as long
        return json.loads(line)
