"""Finding the shards of another tool, and reading one, in a worker, for its digest and the table of its samples."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

from dlio import formats, native
from dlio.codecs.decode_ready import check_core, is_record
from dlio.dataset import manifest, sample_table
from dlio.dataset.location import shards_in
from dlio.dataset.manifest import DecodeReady, File, Shard
from dlio.dataset.sample_table import SampleTableBuilder
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, SourceError, UsageError
from dlio.formats import IndexedReader, Reader
from dlio.formats.layouts.text_index import index_paths, without_hidden_indexes
from dlio.io import files
from dlio.pack.index._layout import ListsShards, ShardLayout, load
from dlio.pack.listing.file_sets import PART, check_one_set, natural_order
from dlio.pack.prefetch import side_by_side
from dlio.pack.shard_progress import EVERY, Row, counts


@dataclass(frozen=True, slots=True)
class FoundShard:
    """A shard of another tool: the name of its file or folder, and its files below the root, the records first."""

    name: str
    files: tuple[str, ...]


def find_shards(root: Path, format: str, match: str | None = None) -> list[FoundShard]:  # noqa: A002  the field's word
    """Returns the shards in the folder `root`, ordered by name, with numbers in numeric order.

    A folder in it is at most a shard, and not searched. With `match`, a pattern of the names to take, an incomplete
    set is accepted.

    Raises:
        SourceError: there are no shards, or some shards of a set are missing.
        CorruptRecordError: a file has the name of a shard, but is not one.
        StorageError: the folder cannot be read.
        UsageError: there are several sets.
    """
    layout, suffix = load(format), formats.load(format).SUFFIX
    found = []
    candidates = [path for path in _candidates(root, layout) if match is None or fnmatchcase(path.name, match)]
    for path, parts in zip(candidates, side_by_side(layout.files, candidates), strict=True):
        if parts:
            found.append(FoundShard(path.name, tuple(str(part.relative_to(root)) for part in parts)))
        elif path.name.endswith(suffix) or PART.fullmatch(path.name):
            problem = "it has the name of a shard, but is cut off, compressed, or of another format"
            raise CorruptRecordError(path, f"{problem}: restore it, or move it away")
    if not found:
        matching = f" that match {match!r}" if match is not None else ""
        advice = shards_in(root) or "give the folder of the shards"
        raise SourceError(f"{root} holds no shards of this format{matching}: {advice}")
    if match is None:
        check_one_set(root, [shard.name for shard in found])
    return found


def _candidates(root: Path, layout: ShardLayout) -> list[Path]:
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder: give the folder of the shards, and --match for one of them")
    listed = layout.listed(root) if isinstance(layout, ListsShards) else None
    if listed is not None:
        return [root / name for name in listed]
    own = (manifest.NAME, manifest.PARTIAL_NAME)
    with files.storage_errors("list", root):
        entries = [path for path in root.iterdir() if path.name not in own and not path.name.startswith(".")]
    return sorted(entries, key=natural_order)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """All that a worker needs to scan one shard; picklable."""

    root: Path
    shard: FoundShard
    format: str
    schema: Schema
    tables: Path
    row: Row | None = None

    @property
    def records(self) -> Path:
        """The file that holds the records."""
        return self.root / self.shard.files[0]

    @property
    def table(self) -> Path:
        """The new file for the table of the samples."""
        return self.tables / f"{self.shard.name}{sample_table.SUFFIX}"

    def __str__(self) -> str:
        return self.shard.name


def scan_shard(task: ScanTask) -> Shard:
    """Reads a shard, writes its index and the table of its samples, and returns its line of the manifest.

    Raises:
        CorruptRecordError: a record is damaged, or does not follow the schema.
        StorageError: a file cannot be read or written.
        MissingPackageError: there are decode-ready records, and this installation cannot read them.
    """
    opened = formats.load(task.format).Reader
    with (
        without_hidden_indexes(),
        closing(opened(task.records, task.schema)) as reader,
        closing(_PrefetchingDigest(task.records)) as digest,
    ):
        table, records = _read(task, reader, digest)
        entry = File(task.shard.files[0], *digest.finish())
        index = reader.index_text() if isinstance(reader, IndexedReader) and len(task.shard.files) == 1 else None
    paths = ((name, task.root / name) for name in task.shard.files[1:])
    others = [File(name, path.stat().st_size, files.digest_file(path)) for name, path in paths]
    own = [] if index is None else [_publish(task.root, index_paths(task.records)[1], index)]
    all_files = (entry, *others, *own, _publish(task.root, task.table, table.to_bytes()))
    return Shard(task.shard.name, len(table), all_files, decode_ready=records if records.records else None)


def _publish(root: Path, path: Path, content: bytes) -> File:
    files.publish_bytes(path, content)
    return File(str(path.relative_to(root)), len(content), files.digest_bytes(content))


def _read(task: ScanTask, reader: Reader, digest: _PrefetchingDigest) -> tuple[SampleTableBuilder, DecodeReady]:
    """Returns the table of the samples, and how many of their values are decode-ready records."""
    table, records = SampleTableBuilder(task.schema), DecodeReady()
    key_of = load(task.format).keys(task.records)
    done, num_bytes = counts(task.row), task.records.stat().st_size
    for number in range(len(reader)):
        digest.advance(reader.locate(number)[1] or 0)
        if not number % EVERY:
            done[1] = num_bytes * number // len(reader)
        try:
            sample = reader.read(number)
        except CorruptRecordError as error:
            raise _with_schema(error, task.schema) from error
        table.append(Sample(_clean(key_of(sample)) or numbered_key(task.shard.name, number), sample.fields))
        records += _records_of(sample)
    return table, records


def _records_of(sample: Sample) -> DecodeReady:
    values = chain.from_iterable(value if isinstance(value, list) else [value] for value in sample.fields.values())
    found = list(filter(is_record, values))
    if found:
        check_core()
    return DecodeReady(len(found), sum(not native.planes_restores_original(record) for record in found))


def numbered_key(shard: str, number: int) -> str:
    """Returns the key of a record without its own key."""
    return f"{shard}/{number:06d}"


def _clean(key: str) -> str:
    """Returns a key as UTF-8 text without zero bytes."""
    return key.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def _with_schema(error: CorruptRecordError, schema: Schema) -> CorruptRecordError:
    problem = f"{error.problem} (read as {schema}; if the record is whole, give the schema with --schema)"
    return CorruptRecordError(error.path, problem, record=error.record, offset=error.offset)


class _PrefetchingDigest:
    """The digest of a file; its blocks are read before the records in them, which then come from the page cache."""

    def __init__(self, path: Path) -> None:
        self._blocks = files.read_blocks(path)
        self._hash = files.new_hash(files.DEFAULT_DIGEST)
        self._position = 0

    def advance(self, offset: float) -> None:
        """Reads past `offset`, in bytes."""
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
