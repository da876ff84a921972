"""Writes and reads whole shards of one format, by files that keep what passes, or are full early."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlio import formats
from dlio.dataset.schema import Sample, Schema
from dlio.errors import StorageError


def write_all(writer: formats.Writer, records: Iterable[Sample]) -> None:
    """Writes a whole shard."""
    for sample in records:
        writer.write(sample)
    writer.close()


def read_all(reader: formats.Reader) -> list[Sample]:
    """Reads a whole shard, and closes its reader."""
    try:
        return [reader.read(index) for index in range(len(reader))]
    finally:
        reader.close()


def content(folder: Path) -> dict[str, bytes]:
    """Returns the content of every file below `folder`, hidden ones too, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class Container:
    """A format under test."""

    name: str

    @property
    def module(self) -> formats.Format:
        """The format's module."""
        return formats.load(self.name)

    def write(self, stem: Path, schema: Schema, records: Sequence[Sample]) -> Path:
        """Returns the path of a new shard."""
        write_all(self.module.Writer(stem, schema), records)
        return self.path(stem)

    def path(self, stem: Path) -> Path:
        """Returns where the records of the shard with this stem are."""
        return stem.with_name(stem.name + self.module.SUFFIX)

    def read(self, path: Path, schema: Schema) -> list[Sample]:
        """Returns all samples of a shard."""
        return read_all(self.module.Reader(path, schema))


class WatchedFile:
    """A file of a writer: keeps what passes, and takes no more than `room` bytes."""

    def __init__(self, path: Path, room: int = 1 << 40) -> None:
        self.path, self.room, self.passed = path, room, bytearray()
        self.file = formats.open_plain(path)
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        if self.room < len(data):
            raise StorageError(28, f"cannot write {self.path}: no space")
        self.room -= len(data)
        self.passed += data
        return self.file.write(data)

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview], /) -> None:
        for part in parts:
            self.write(part)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        self.closed = True
