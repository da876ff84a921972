"""Reading one shard of another tool, in a worker: its digest, and the table of its samples."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dlio import files, formats, sample_table
from dlio.errors import CorruptRecordError
from dlio.manifest import File, Shard
from dlio.pack.adopt import load
from dlio.pack.adopt._find import Found
from dlio.sample import Sample, Schema
from dlio.sample_table import SampleTableBuilder


@dataclass(frozen=True, slots=True)
class ShardTask:
    """All that a worker needs for one shard; picklable."""

    root: Path
    shard: Found
    layout: str
    schema: Schema

    @property
    def table(self) -> Path:
        """Where the table of the samples is written."""
        return self.root / f"{self.shard.name}{sample_table.SUFFIX}"

    def __str__(self) -> str:
        return self.shard.name


def scan_shard(task: ShardTask) -> Shard:
    """Reads a shard, writes the table of its samples, and returns its line of the manifest.

    Raises:
        CorruptRecordError: a record is damaged, or does not follow the schema.
        StorageError: a file cannot be read, or the table not be written.
    """
    records = task.root / task.shard.files[0]
    with closing(_DigestAhead(records)) as digest:
        table = _read(task, records, digest)
        entry = File(task.shard.files[0], *digest.finish())
    others = [_entry(task.root, name) for name in task.shard.files[1:]]
    files.publish_bytes(task.table, table.to_bytes())
    return Shard(task.shard.name, len(table), (entry, *others, _entry(task.root, task.table.name)))


def _entry(root: Path, name: str) -> File:
    return File(name, (root / name).stat().st_size, files.digest_file(root / name))


def _read(task: ShardTask, records: Path, digest: _DigestAhead) -> SampleTableBuilder:
    layout = load(task.layout)
    table = SampleTableBuilder(task.schema)
    key_of = layout.keys(records)
    with closing(formats.load(layout.CONTAINER).Reader(records, task.schema)) as reader:
        for number in range(len(reader)):
            digest.advance(reader.locate(number)[1] or 0)
            try:
                sample = reader.read(number)
            except CorruptRecordError as error:
                raise _with_schema(error, task.schema) from error
            table.append(Sample(_clean(key_of(sample)) or numbered_key(task.shard.name, number), sample.fields))
    return table


def numbered_key(shard: str, number: int) -> str:
    """Returns the key of a record that has none of its own."""
    return f"{shard}/{number:06d}"


def _clean(key: str) -> str:
    """Returns a key as text that is UTF-8 and has no zero byte."""
    return key.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def _with_schema(error: CorruptRecordError, schema: Schema) -> CorruptRecordError:
    problem = f"{error.problem} (read as {schema.types()}: if the record is whole, say by --schema what all hold)"
    return CorruptRecordError(error.path, problem, record=error.record, offset=error.offset)


class _DigestAhead:
    """The digest of a file that is being read: reads blocks ahead of the records, which then are in the page cache."""

    def __init__(self, path: Path) -> None:
        self._blocks = files.read_blocks(path)
        self._hash = files.new_hash(files.DEFAULT_DIGEST)
        self._position = 0

    def advance(self, offset: float) -> None:
        """Reads on, past `offset` in bytes."""
        while self._position <= offset and (block := next(self._blocks, None)) is not None:
            self._hash.update(block)
            self._position += len(block)

    def finish(self) -> tuple[int, str]:
        """Returns the file's size in bytes and `algorithm:hex` of its content."""
        self.advance(math.inf)
        return self._position, f"{files.DEFAULT_DIGEST}:{self._hash.hexdigest()}"

    def close(self) -> None:
        """Closes the file."""
        self._blocks.close()
