"""Makes shards of other tools a dlio data set, in place: `index` writes what dlio needs next to them.

It writes `manifest.jsonl` and a folder `.dlio-index`. The folder holds a table of the samples of each shard
(`dlio.dataset.sample_table`) and, for a shard that has no index, an index (`dlio.formats.layouts.text_index`). The
shards themselves are not changed. No new name matches a pattern by which other tools find shards, such as `train-*`.

To add a format, add a module of the format's name to this folder; it fulfils `ShardLayout`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dlio.dataset import manifest
from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.dataset.shard import files_of
from dlio.errors import DlioError, SchemaError, StorageError, UsageError
from dlio.executors import map_bounded, num_workers, processes
from dlio.formats.layouts.text_index import HIDDEN
from dlio.io.ground import check_ground
from dlio.io.open_folder import OpenFolder
from dlio.locking.claim import exclusively, forget
from dlio.pack import shard_progress
from dlio.pack.index._layout import InfersTogether, load, names
from dlio.pack.index._names import class_names, with_distinct_keys
from dlio.pack.index._scan import ScanTask, find_shards, scan_shard
from dlio.pack.resume import INDEXED

__all__ = ["index", "names"]

CLAIMS = ".dlio-indexing"  # below the folder of the shards: who is indexing it
_NUMBERED = re.compile("[0-9]{1,9}/[^/]+")  # a table of an index that has replaced another


def index(
    path: str | Path,
    *,
    format: str,  # noqa: A002  the field's word
    match: str | None = None,
    schema: Schema | None = None,
    label_offset: int = 0,
    overwrite: bool = False,
    workers: int | None = None,
    started: Callable[[int, int], None] = lambda num_bytes, num_shards: None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> Manifest:
    """Makes the shards in the folder `path` a dlio data set; arguments and errors are those of `dlio.index`.

    Every record is read once. Its key, checksum and small numbers are kept. A record without a key, or with the key of
    an earlier record, gets the key `SHARD/000012`, where 12 is its number in its shard.
    """
    root, layout = Path(path).absolute(), load(format)
    check_ground(root, CLAIMS, HIDDEN)
    if os.access(root / CLAIMS, os.W_OK):
        _forget_killed(root)
    _earlier(root, overwrite)
    found = find_shards(root, format, match)
    if schema is None:
        records = [root / shard.files[0] for shard in found]
        schema = layout.infer_all(records) if isinstance(layout, InfersTogether) else layout.infer(records[0])
    schema = replace(schema, label_offset=label_offset or schema.label_offset)
    if label_offset and str(schema.get("label")) != "int64":
        raise SchemaError(f"a label offset needs one whole label for each sample, found {schema}")
    if not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
        raise _unwritable(root, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    rows = shard_progress.rows([shard.name for shard in found])
    with exclusively(root / CLAIMS, f"dlio index of {root}"):
        old = _earlier(root, overwrite)
        _remove_but(root, old)
        tables = _make_folder(root, old)
        tasks = [ScanTask(root, shard, format, schema, tables, rows.get(shard.name)) for shard in found]
        try:
            started(sum((root / name).stat().st_size for shard in found for name in shard.files[:1]), len(found))
            whole = _scan_all(tasks, workers, report)
            whole = replace(whole, shards=with_distinct_keys(whole))
            whole = replace(whole, schema=replace(schema, class_names=class_names(whole, layout)))
            whole.save(root)
        except BaseException:
            with suppress(DlioError):
                _remove_but(root, _earlier(root, overwrite=True))
            raise
        _remove_but(root, whole)
    return whole


def _forget_killed(root: Path) -> None:
    """Removes the claim of a killed run."""
    with suppress(OSError), OpenFolder.at(root) as opened:
        with opened.below(CLAIMS) as claims:
            forget(claims)
        opened.rmdir(CLAIMS)


def _scan_all(tasks: list[ScanTask], workers: int | None, report: Callable[[Shard], None]) -> Manifest:
    """Reads all shards and returns their manifest, with each shard's own keys and without class names."""
    with processes.open(min(num_workers(workers), len(tasks)), None) as pool:
        found = shard_progress.reported(map_bounded(pool, scan_shard, tasks), report)
        scanned = {shard.name: shard for shard in found}
    first = tasks[0]
    origin = {"source": INDEXED, "path": str(first.root), "num_shards": len(tasks)}
    return Manifest(first.format, first.schema, tuple(scanned[task.shard.name] for task in tasks), origin, first.root)


def _make_folder(root: Path, old: Manifest | None) -> Path:
    """Returns a new, empty folder for the tables: that of an index to replace stays whole until then."""
    folder = root / HIDDEN
    if old is not None:
        numbers = [int(name.parts[0]) for name in _hidden_names(old) if _NUMBERED.fullmatch(str(name))]
        folder /= str(max(numbers, default=0) + 1)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(root, error) from error
    return folder


def _hidden_names(found: Manifest) -> list[PurePosixPath]:
    """Returns the names of an index's own files, below their folder."""
    names = [PurePosixPath(file.name) for file in files_of(found.shards)]
    return [name.relative_to(HIDDEN) for name in names if name.is_relative_to(HIDDEN)]


def _remove_but(root: Path, kept: Manifest | None) -> None:
    """Removes the tables and indexes of all earlier runs but those of one index, if any."""
    stay = set() if kept is None else {path for name in _hidden_names(kept) for path in (name, name.parent)}
    hidden = root / HIDDEN
    try:
        for path in sorted(hidden.rglob("*"), reverse=True) if hidden.is_dir() else ():  # what is in a folder first
            if PurePosixPath(path.relative_to(hidden)) not in stay:
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        if not stay and hidden.is_dir():
            hidden.rmdir()
    except OSError as error:
        raise _unwritable(root, error) from error


def _unwritable(root: Path, error: OSError) -> StorageError:
    advice = "if the shards are read-only, make a folder of links to them elsewhere, and index that folder"
    return StorageError(error.errno, f"cannot write to {root}: {error.strerror}: {advice}")


def _earlier(root: Path, overwrite: bool) -> Manifest | None:
    """Returns an earlier index of `root` if `overwrite` is set; raises UsageError if it is not, or for another set."""
    if (root / manifest.PARTIAL_NAME).exists():
        raise UsageError(f"{root} is being packed by dlio: run the same dlio pack again, or give another folder")
    if not (root / manifest.NAME).exists():
        return None
    if (found := Manifest.load(root)).origin.get("source") != INDEXED:
        raise UsageError(f"{root} is a data set that dlio has packed: it needs no index")
    if not overwrite:
        raise UsageError(f"{root} has been indexed: use it, or index it again with --overwrite")
    return found
