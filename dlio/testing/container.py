"""Writes and reads whole shards of one format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlio import formats
from dlio.dataset.schema import Sample, Schema


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
