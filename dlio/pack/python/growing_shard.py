"""A shard that `dlio.Writer` writes, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.schema import Sample
from dlio.errors import SchemaError
from dlio.io import files
from dlio.pack.python.fields import advised
from dlio.pack.write import OpenShard, new_aside
from dlio.pack.write_samples import Preparing, WrittenSamples


@dataclass(slots=True)
class GrowingShard:
    """A shard that is being written in the folder `aside`; `is_inferred` is its schema, of the first sample."""

    aside: Path
    is_inferred: bool
    opened: OpenShard
    prepared: Preparing
    written: WrittenSamples
    num_bytes: int = 0

    @classmethod
    def create(cls, out: Path, name: str, container: str, prepared: Preparing, *, is_inferred: bool) -> GrowingShard:
        """Returns a shard of no samples yet, in its own folder below `out`; raises StorageError."""
        aside = new_aside(out, name)
        with files.storage_errors("create", aside):
            opened = OpenShard(name, container, prepared.schema, files.DEFAULT_DIGEST, aside)
        return cls(aside, is_inferred, opened, prepared, WrittenSamples.none(prepared.schema))

    def write(self, sample: Sample) -> None:
        """Appends a sample; raises SchemaError and SourceError before anything is written."""
        try:
            checked, images = self.prepared(sample)
        except SchemaError as error:
            raise advised(error) if self.is_inferred else error from None
        self.opened.writer.write(checked)
        self.written.add_one(checked, images)
        self.num_bytes += self.written.table.last_bytes
