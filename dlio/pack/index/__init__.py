"""Adopts shards that other tools made, where they are: `index` writes what dlio needs beside them.

That is `manifest.jsonl` and a folder `.dlio-index`, which holds for each shard the table of its samples
(`dlio.dataset.sample_table`) and, where the owner has none, its index (`dlio.formats.layouts.text_index`). Nothing of
the owner's is changed, and no pattern by which other tools find the shards, such as `train-*`, matches what is new.

How the shards of a format are recognised, and what their records hold, tells the module of this folder that has the
format's name; it fulfils `Layout`.
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from dlio.errors import SchemaError, StorageError, UsageError
from dlio.formats.layouts.text_index import HIDDEN

if TYPE_CHECKING:
    from dlio.dataset.manifest import Manifest, Shard
    from dlio.dataset.schema import Sample, Schema
    from dlio.pack.index._scan import ShardTask

CLAIMS = ".dlio-indexing"  # below the folder of the shards: who is indexing it


class Layout(Protocol):
    """What the module of a format holds: how other tools lay out its shards."""

    def files(self, path: Path) -> tuple[Path, ...]:
        """Returns the files of the shard that `path`, a file or folder, is, its records first; none if it is none.

        Reads the first bytes only, or where the format has it, an index at the end.
        """

    def infer(self, records: Path) -> Schema:
        """Returns the schema that the first records of a shard follow.

        Raises:
            SchemaError: they follow none that dlio has.
            CorruptRecordError: the file is damaged.
            StorageError: it cannot be read.
        """

    def keys(self, records: Path) -> Callable[[Sample], str]:
        """Returns what gives the key of a sample that the format's reader has read; '' where the shard has none."""


@runtime_checkable
class ListsShards(Protocol):
    """A layout whose folders have a list of their shards."""

    def listed(self, root: Path) -> list[str] | None:
        """Returns the names of all shards' files in `root`, in order, or None where there is no list."""


@runtime_checkable
class NamesClasses(Protocol):
    """A layout whose records may tell the name of their class."""

    def class_names(self, records: Path, numbers: list[int]) -> list[str]:
        """Returns the names of the classes of the records with these numbers, '' where one has none."""


def names() -> list[str]:
    """Returns the names of the formats whose shards can be adopted, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Layout:
    """Returns the layout of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in names():
        raise UsageError(f"shards of the format {name!r} cannot be adopted: expected one of {', '.join(names())}")
    return cast(Layout, importlib.import_module(f"{__name__}.{name}"))


def index(
    path: str | Path,
    *,
    format: str,  # noqa: A002  the field's word
    match: str | None = None,
    schema: Schema | None = None,
    label_offset: int = 0,
    overwrite: bool = False,
    workers: int | None = None,
    started: Callable[[int], None] = lambda num_shards: None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> Manifest:
    """Makes the shards in the folder `path`, whatever made them, a data set of dlio and returns its manifest.

    Every record is read once, and its key, checksum and small numbers are kept. A record without a key, or whose key
    an earlier record has, gets `SHARD/000012`, 12 being its number in its shard.

    Args:
        path: the folder that holds the shards; where it cannot be written, a folder of links to them and their indexes.
        format: tfrecord, recordio, lmdb, hdf5, webdataset or mds.
        match: a pattern of the names to take, such as `train-*`; by default all, which must then be of one set.
        schema: what the records hold; by default what the first ones do, and all others must.
        label_offset: what was added to class indices when the shards were made (1 in TensorFlow's ImageNet files).
        overwrite: replaces the manifest of an earlier call.
        workers: the number of processes; by default one for each core that may be used.
        started: called once with the number of shards when they are found.
        report: called with each shard when it has been read.

    Raises:
        SourceError: there is no shard, or some of a set are missing.
        SchemaError: the records follow no schema that dlio has, or have no labels to offset.
        CorruptRecordError: a record is damaged, or does not follow the schema; names file, record and offset.
        StorageError: the folder cannot be read or written, or another process indexes it, which is told before the
            shards are read.
        UsageError: the folder holds several sets of shards, or a data set of dlio.
    """
    from dlio.io.open_folder import check_ground
    from dlio.locking.claim import alone
    from dlio.pack.index._find import find_shards
    from dlio.pack.index._scan import ShardTask

    root, layout = Path(path).absolute(), load(format)
    check_ground(root, CLAIMS, HIDDEN)
    if os.access(root / CLAIMS, os.W_OK):
        _forget_killed(root)
    _check_no_data_set(root, overwrite)
    found = find_shards(root, format, match)
    schema = replace(schema or layout.infer(root / found[0].files[0]), label_offset=label_offset)
    if label_offset and str(schema.get("label")) != "int64":
        raise SchemaError(f"a label offset needs one whole label for each sample, found {schema.types()}")
    if not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
        raise _unwritable(root, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    tasks = [ShardTask(root, shard, format, schema) for shard in found]
    with alone(root / CLAIMS, f"dlio index of {root}"):
        _check_no_data_set(root, overwrite)
        hidden = _make_hidden(root)
        try:
            started(len(found))
            return _index(tasks, workers, report)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise


def _forget_killed(root: Path) -> None:
    """Removes the claim that a killed run has left."""
    from dlio.io.open_folder import OpenFolder
    from dlio.locking.claim import forget

    with suppress(OSError), OpenFolder.at(root) as opened:
        with opened.below(CLAIMS) as claims:
            forget(claims)
        opened.rmdir(CLAIMS)


def _index(tasks: list[ShardTask], workers: int | None, report: Callable[[Shard], None]) -> Manifest:
    """Reads the shards, and publishes and returns the manifest."""
    from dlio.dataset.manifest import Manifest
    from dlio.executors import map_bounded, num_workers, processes
    from dlio.pack.index._classes import class_names
    from dlio.pack.index._keys import with_distinct_keys
    from dlio.pack.index._scan import scan_shard
    from dlio.pack.resume import INDEXED

    root, schema, layout = tasks[0].root, tasks[0].schema, load(tasks[0].format)
    scanned: dict[str, Shard] = {}
    with processes.open(min(num_workers(workers), len(tasks)), None) as pool:
        for shard in map_bounded(pool, scan_shard, tasks):
            scanned[shard.name] = shard
            report(shard)
    origin = {"source": INDEXED, "path": str(root), "num_shards": len(tasks)}
    shards = tuple(scanned[task.shard.name] for task in tasks)
    manifest = Manifest(tasks[0].format, schema, shards, origin, root)
    manifest = replace(manifest, shards=with_distinct_keys(manifest))
    manifest = replace(manifest, schema=replace(schema, class_names=class_names(manifest, layout)))
    manifest.save(root)
    return manifest


def _make_hidden(root: Path) -> Path:
    """Returns the folder for what is written of each shard, new and empty; what an earlier `index` wrote is removed."""
    from dlio.dataset.manifest import NAME

    folder = root / HIDDEN
    try:
        (root / NAME).unlink(missing_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
    except OSError as error:
        raise _unwritable(root, error) from error
    return folder


def _unwritable(root: Path, error: OSError) -> StorageError:
    advice = "where the shards may only be read, make a folder of links to them elsewhere, and index that"
    return StorageError(error.errno, f"cannot write to {root}: {error.strerror}: {advice}")


def _check_no_data_set(root: Path, overwrite: bool) -> None:
    """Checks that `root` holds no data set of dlio, but of an earlier `index` if that may be overwritten."""
    from dlio.dataset import manifest
    from dlio.pack.resume import INDEXED

    if (root / manifest.PARTIAL_NAME).exists():
        raise UsageError(f"{root} is being packed by dlio: run the same pack command again, or give another folder")
    if not (root / manifest.NAME).exists():
        return
    if manifest.Manifest.load(root).origin.get("source") != INDEXED:
        raise UsageError(f"{root} is a data set that dlio has packed: it needs no index")
    if not overwrite:
        raise UsageError(f"{root} has been indexed: use it as it is, or --overwrite to index it anew")
