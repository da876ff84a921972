"""Checking a packed data set: every file's digest, every record's checksum, and on request every image."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dlio import formats
from dlio.dataset.location import TREE
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.reader import ShardReader
from dlio.dataset.remote import load
from dlio.dataset.schema import Sample
from dlio.dataset.shard_files import advice_if_lost, files_here
from dlio.dataset.tree import differing
from dlio.errors import CorruptRecordError, DigestError, DlioError, MissingError, SourceError, StorageError
from dlio.executors import map_bounded, num_workers, processes
from dlio.io import files
from dlio.io.remote_files import RemoteFiles
from dlio.pack import shard_progress
from dlio.pack.inspect.image_header import decode_image
from dlio.pack.prefetch import MOST_BYTES, MOST_READS, Depth, blocks_at, idle_clock, side_by_side
from dlio.pack.shard_progress import EVERY, Counts, Row, counts
from dlio.urls import without_credentials

_NOT_OF_THE_FILE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_TURNS = 4  # at least this many groups for each worker, so that all have work until the end


@dataclass(frozen=True, slots=True)
class Damage:
    """A file or record that differs from what was packed.

    Attributes:
        shard: the shard's name; '' for the manifest, and for what was staged as it is.
        path: the damaged file.
        problem: what was expected and what was found.
        record: the record's number within the shard, from 0; None for a whole file.
        key: the sample's key; '' for a whole file.
        offset: the record's offset in `path`, in bytes; None if unknown.
    """

    shard: str
    path: str
    problem: str
    record: int | None = None
    key: str = ""
    offset: int | None = None

    def __str__(self) -> str:
        parts = [f"shard {self.shard}", self.path] if self.shard else [self.path]
        if self.record is not None:
            parts.append(f"record {self.record} {self.key!r}")
        if self.offset is not None:
            parts.append(f"offset {self.offset}")
        return f"{', '.join(parts)}: {self.problem}"


def verify(
    dataset: str | Path | Manifest,
    *,
    decode: bool = False,
    workers: int | None = None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> list[Damage]:
    """Returns all damage in a packed data set, in the order of shards and records; empty if it is whole.

    In a data set that is staged in parts, only the local part is checked (`Manifest.shards_here`).

    Args:
        dataset: the folder or URL of the data set, or its manifest. At a URL each file is read twice.
        decode: also decodes every image.
        workers: the number of processes; by default one for each core.
        report: called with each checked shard.

    Raises:
        ManifestError: `dataset` holds no data set, or its manifest is damaged.
        StorageError: this user may not read a file.
        MissingPackageError: the format's own package is not installed.
        UsageError: the format is a module of another package, which is not imported.
    """
    manifest = load(dataset)
    if manifest.format != TREE:
        formats.load(manifest.format)
    found: dict[str, list[Damage]] = {}
    header, count = replace(manifest, shards=()), min(num_workers(workers), max(1, len(manifest.shards_here)))
    rows = shard_progress.rows([shard.name for shard in manifest.shards_here])
    groups = list(_groups(manifest.shards_here, count))
    own = [{shard.name: rows[shard.name] for shard in some if shard.name in rows} for some in groups]
    checks = [ShardCheck(header, some, decode, seen) for some, seen in zip(groups, own, strict=True)]
    with processes.open(count, None) as pool:
        for checked in map_bounded(pool, check_shards, checks):
            for shard, damage in checked:
                found[shard.name] = damage
                shard_progress.finished(shard.name)
                report(shard)
    damaged = [damage for shard in manifest.shards_here for damage in found[shard.name]]
    if manifest.format == TREE and manifest.shards and not manifest.url and not found[manifest.shards[0].name]:
        damaged += [
            Damage("", str(manifest.root / name), problem) for name, problem in differing(manifest, manifest.root)
        ]
    return [replace(each, shard="") for each in damaged] if manifest.format == TREE else damaged


def _groups(shards: Sequence[Shard], workers: int) -> Iterator[tuple[Shard, ...]]:
    """Yields groups of shards for a worker, small shards together, since several at a time hide latency."""
    most = max(1, min(MOST_READS, len(shards) // (_TURNS * workers)))
    group: list[Shard] = []
    for shard in shards:
        if group and (len(group) == most or sum(one.num_bytes for one in group) + shard.num_bytes > MOST_BYTES):
            yield tuple(group)
            group = []
        group.append(shard)
    if group:
        yield tuple(group)


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """All that a worker needs to check some shards: the manifest without its shards, and the shards; picklable.

    A shard's files are read for their digests first, then its records; `digest_share` of the shard is then done.
    """

    header: Manifest
    shards: tuple[Shard, ...]
    decode: bool
    rows: Mapping[str, Row] = field(default_factory=dict)

    @property
    def digest_share(self) -> float:
        """The part of the work that reading for the digests is, about."""
        return 0.1 if self.decode else 0.5

    def __str__(self) -> str:
        return ", ".join(shard.name for shard in self.shards)


def check_shards(check: ShardCheck) -> list[tuple[Shard, list[Damage]]]:
    """Returns the shards and all damage in each."""
    found = side_by_side(partial(_check_shard, check), check.shards, Depth(idle_clock))
    return list(zip(check.shards, found, strict=True))


def _check_shard(check: ShardCheck, shard: Shard) -> list[Damage]:
    done = counts(check.rows.get(shard.name))
    damaged, readable = _damaged_files(check, shard, done)
    has_records = readable and check.header.format != TREE
    found = [*damaged, *(_damaged_records(check, shard, done) if has_records else ())]
    return [replace(each, path=without_credentials(each.path)) for each in found]


def _damaged_files(check: ShardCheck, shard: Shard, done: Counts) -> tuple[list[Damage], bool]:
    """Returns the damage of files that differ from their digest or cannot be read, and whether all can be read."""

    read = 0

    def seen(num_bytes: int) -> None:
        nonlocal read
        read += num_bytes
        _note(done, shard, check.digest_share * read / max(1, shard.num_bytes))

    damaged, readable = [], True
    own = files_here(check.header, shard)
    for file, error in zip(own, side_by_side(partial(_problem, check.header, seen), own), strict=True):
        if error is not None and _is_inconclusive(error):
            raise error
        if error is not None:
            path = str(check.header.root / file.name)
            is_gone = isinstance(error, StorageError) and error.errno == errno.ENOENT and not check.header.url
            problem = error.text.removeprefix(f"{path} is damaged: ")
            damaged.append(Damage(shard.name, path, problem + (advice_if_lost(Path(path)) if is_gone else "")))
            readable &= isinstance(error, DigestError)
    return damaged, readable


def _note(done: Counts, shard: Shard, share: float) -> None:
    done[:] = share * shard.num_samples, share * shard.num_bytes


def _is_inconclusive(error: DlioError) -> bool:
    """Returns whether nothing is known of the file: this user may not read it, or this process has reached a limit."""
    return isinstance(error, MissingError) or (isinstance(error, StorageError) and error.errno in _NOT_OF_THE_FILE)


def _problem(header: Manifest, seen: Callable[[int], None], file: File) -> DlioError | None:
    """Returns why a file cannot be read, or how it differs from its digest; None for a good file."""
    path = header.root / file.name
    try:
        if header.url:
            files.check_digest(path, file.digest, seen, blocks_at(RemoteFiles(header.url), file))
            return None
        with files.storage_errors("read", path):
            if (size := path.stat().st_size) != file.num_bytes:  # a sparse file may take years to read
                problem = f"expected {file.num_bytes} bytes, found {size}: restore the file or stage it again"
                raise StorageError(f"{path} is damaged: {problem}")
        files.check_digest(path, file.digest, seen)
    except DlioError as error:
        return error
    return None


def _damaged_records(check: ShardCheck, shard: Shard, done: Counts) -> Iterator[Damage]:
    try:
        with closing(ShardReader(check.header, shard)) as reader:
            for index in range(len(reader)):
                if not index % EVERY:
                    _note(done, shard, check.digest_share + (1 - check.digest_share) * index / len(reader))
                yield from _damage(reader, index, check.decode)
    except CorruptRecordError as error:
        yield Damage(shard.name, error.path, error.problem, error.record, "", error.offset)
    except DlioError as error:
        if _is_inconclusive(error):
            raise
        yield Damage(shard.name, str(check.header.root / shard.files[0].name), error.text)


def _damage(reader: ShardReader, index: int, decode: bool) -> Iterator[Damage]:
    """Yields the damage of a record; raises CorruptRecordError if the shard's table is damaged."""
    path, offset = reader.locate(index)
    try:
        sample = reader.read(index)
        if decode:
            _decode(sample)
    except DlioError as error:
        if _is_inconclusive(error):
            raise
        problem, record = error.text, index
        if isinstance(error, CorruptRecordError):
            if error.record is None and error.path != without_credentials(str(path)):
                raise
            problem, record = error.problem, index if error.record is None else error.record
        yield Damage(reader.shard.name, str(path), problem, record, _key(reader, index), offset)


def _key(reader: ShardReader, index: int) -> str:
    try:
        return reader.key(index)
    except DlioError:
        return ""


def _decode(sample: Sample) -> None:
    for name, value in sample.fields.items():
        for image in value if isinstance(value, list) else [value]:
            if isinstance(image, bytes):
                try:
                    decode_image(image)
                except SourceError as error:
                    problem = str(error).removeprefix("it cannot be decoded: ")
                    raise SourceError(f"the field {name!r} cannot be decoded: {problem}") from error
