"""A data set over image files as they lie: a manifest, lists of the files, and a link to their folder; no copies.

The files are listed once, as for `pack`, and grouped as `pack` would. `dlio.formats.readonly.files` has the layout.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dlio.dataset import manifest, sample_table
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.sample_table import SampleTableBuilder, unread_table
from dlio.errors import SourceError, UsageError
from dlio.executors import map_bounded, num_workers, processes
from dlio.formats.layouts import file_list
from dlio.formats.layouts.file_list import FileList, is_inside
from dlio.formats.readonly import files as loose
from dlio.io import files
from dlio.io.ground import check_ground, check_manifests
from dlio.locking.claim import alone
from dlio.pack import inside
from dlio.pack.index import CLAIMS
from dlio.pack.inside import EVERY, Row, unseen
from dlio.pack.listing.base import FileSource, Listing, Numbers, Source
from dlio.pack.listing.classes import check_indices, without_rows
from dlio.pack.listing.image_files import exact_states
from dlio.pack.plan import ShardPlan, plan_shards, shard_number
from dlio.pack.prefetch import side_by_side
from dlio.pack.resume import INDEXED
from dlio.pack.sets.linked import link_target
from dlio.pack.sources import open_source
from dlio.urls import is_url

FORMAT = "files"
_MOST_FILES = 16384  # of a group: its list is read as a whole, 1 MB
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]+\.tmp", re.DOTALL)  # as `files.publish_bytes` names them
log = logging.getLogger(__name__)


def index_files(
    source: Source | str | Path,
    out: str | Path | None = None,
    *,
    checksums: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    workers: int | None = None,
    started: Callable[[int, int], None] = lambda num_bytes, num_shards: None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> Manifest:
    """Makes image files a data set where they lie; see `dlio.index`, whose arguments and errors these are."""
    given: Any = source
    found: Source = given if hasattr(given, "listing") else open_source(given)
    folder = _folder_of(found)
    root = Path(out or _beside(found)).absolute()
    if root.resolve() in (real := folder.resolve(), *real.parents) or real in root.resolve().parents:
        raise UsageError(f"{root} is, lies in, or holds the folder of the files {folder}: give another --out")
    check_ground(root, CLAIMS)
    check_manifests(root, manifest.NAME)
    _check_free(root, overwrite)
    listing, times = _listed(found, folder, skips=on_error == "skip")
    least = -(-len(listing) // _MOST_FILES)
    plan = plan_shards(listing.num_bytes)
    plan = plan_shards(listing.num_bytes, num_shards=least) if len(plan) < least else plan
    with files.storage_errors("create", root):
        root.mkdir(parents=True, exist_ok=True)
    with alone(root / CLAIMS, f"dlio index of {folder}"):
        _check_free(root, overwrite)
        _clear(root)
        started(sum(each.num_bytes for each in plan), len(plan))
        shards = _written(
            root, folder, found, listing, times, plan, checksums=checksums, workers=workers, report=report
        )
        with files.storage_errors("link", root / file_list.FOLDER):
            (root / file_list.FOLDER).symlink_to(link_target(folder, root))
        files.sync_folder(root)
        origin = {"source": INDEXED, "path": str(found.path), "num_shards": len(shards), "kind": found.name}
        origin |= {"plan": files.digest_bytes(repr([shard.files for shard in shards]).encode())}
        origin |= {"refused": [list(entry) for entry in listing.refused]} if listing.refused else {}
        made = Manifest(FORMAT, listing.schema, tuple(shards), origin, root)
        made.save(root)
    return made


def _folder_of(source: Source) -> Path:
    """Returns the folder of a source's files; raises UsageError if its samples are no files in a folder."""
    folder = source.folder if isinstance(source, FileSource) else None
    if folder is None or is_url(folder):
        if source.name == "packed":
            raise UsageError(f"{source.path} is a dlio data set already: loaders and verbs take it as it is")
        advice = "pack it, or give --format for shards of another tool"
        raise UsageError(
            f"{source.path}: only image files in a folder are indexed in place, not {source.name}: {advice}"
        )
    return Path(folder).absolute()


def _beside(source: Source) -> Path:
    path = Path(str(source.path)).absolute()
    return path.with_name(f"{path.name if path.is_dir() else path.stem}-index")


def _check_free(root: Path, overwrite: bool) -> None:
    """Checks that a folder is new, or holds nothing but an index that may be replaced, or that of a killed run."""
    with files.storage_errors("look at", root):
        names = {path.name for path in root.iterdir()} if root.exists() else set[str]()
    if manifest.NAME in names:
        found = Manifest.load(root)
        if (found.format, found.origin.get("source")) != (FORMAT, INDEXED):
            raise UsageError(f"{root} holds another data set: give another --out")
        if not overwrite:
            raise UsageError(f"{root} has been indexed: use it as it is, or --overwrite to index the files again")
    if others := sorted(name for name in names if not _is_own(name)):
        raise UsageError(f"{root} holds {others[0]!r}: give a new or an empty folder by --out")


def _is_own(name: str) -> bool:
    """Returns whether a file's name is one of an index, or of such a file that was not finished."""
    name = aside[1] if (aside := _UNFINISHED.fullmatch(name)) else name
    is_shard = shard_number(name) is not None and name.endswith((file_list.SUFFIX, sample_table.SUFFIX))
    return is_shard or name in (manifest.NAME, file_list.FOLDER, CLAIMS)


def _clear(root: Path) -> None:
    """Removes an earlier index, its manifest first."""
    with files.storage_errors("remove", root):
        (root / manifest.NAME).unlink(missing_ok=True)
        for path in root.iterdir():
            if path.name != CLAIMS:
                path.unlink()


def _listed(source: Source, folder: Path, *, skips: bool) -> tuple[Listing, Numbers]:
    """Returns the samples with their exact sizes, and when each file was changed last, in ns; int64 of shape (n,)."""
    listing = check_indices(source.listing())
    if listing.left_out:
        log.warning("%s: not indexed: %s", source.path, listing.left_out)
    text = [name for name in listing.schema if listing.schema[name].dtype == "str"]
    if text or "image" not in listing.schema:
        raise UsageError(
            f"{source.path}: files with text are not indexed in place ({listing.schema.types()}): pack them"
        )
    listing.keys.check_distinct(str(source.path))
    outside = {row: "it lies outside of the folder" for row, key in enumerate(listing.keys) if not is_inside(key)}
    listing = without_rows(listing, outside)
    sizes, times = exact_states(folder, listing.keys)
    missing = np.flatnonzero(sizes == 0)
    listing = without_rows(
        replace(listing, num_bytes=sizes), dict.fromkeys(missing.tolist(), "it is missing, empty, or no file")
    )
    if not skips:
        listing.check_whole()
    if not len(listing):
        raise SourceError(f"{source.path} has no files to index")
    return listing, np.delete(times, missing)


@dataclass(frozen=True, slots=True)
class _Group:
    """The files of a shard, for a worker; picklable."""

    root: Path
    name: str
    source: Source
    listing: Listing
    times: Numbers
    row: Row | None = None

    def __str__(self) -> str:
        return self.name

    def publish(self, sizes: Numbers, digest: str, table: bytes) -> Shard:
        """Writes the list and the table, and returns the shard's line of the manifest."""
        names = self.listing.keys.pieces()
        times = self.times if not digest else np.empty(0, np.int64)
        columns = tuple(np.asarray(values) for values in _fields(self.listing).values())
        ends = names.bounds[1:] - names.bounds[0]
        made = FileList(Path(), sizes, times, ends, names.joined(), columns)
        entries = [File(f"{self.name}{loose.SUFFIX}", int(sizes.sum()), digest)]
        for suffix, content in ((file_list.SUFFIX, made.to_bytes()), (sample_table.SUFFIX, table)):
            files.publish_bytes(self.root / f"{self.name}{suffix}", content)
            entries.append(File(f"{self.name}{suffix}", len(content), files.digest_bytes(content)))
        return Shard(self.name, len(sizes), tuple(entries))


def _fields(listing: Listing) -> Mapping[str, np.ndarray]:
    """Returns the values of all fields but the image, in the schema's order, of its types."""
    return {
        name: listing.columns[name].astype(kind.dtype)
        for name, kind in listing.schema.items()
        if name in listing.columns
    }


def _written(
    root: Path,
    folder: Path,
    source: Source,
    listing: Listing,
    times: Numbers,
    plan: Iterable[ShardPlan],
    *,
    checksums: bool,
    workers: int | None,
    report: Callable[[Shard], None],
) -> list[Shard]:
    """Writes the lists and tables of all groups, and returns the shards."""
    planned = list(plan)
    rows = inside.rows([each.name for each in planned])
    groups = [
        _Group(
            root,
            each.name,
            source,
            listing.take(each.indices),
            times[each.indices.start : each.indices.stop],
            rows.get(each.name),
        )
        for each in planned
        if isinstance(each.indices, range)
    ]
    shards = []
    if not checksums:
        for shard in side_by_side(_unread, groups):
            shards.append(shard)
            report(shard)
        return shards
    with processes.open(min(num_workers(workers), len(groups)), None) as pool:
        for shard in map_bounded(pool, _read, groups):
            shards.append(shard)
            inside.finished(shard.name)
            report(shard)
    return sorted(shards, key=lambda shard: shard.name)


def _unread(group: _Group) -> Shard:
    listing = group.listing
    return group.publish(
        listing.num_bytes, "", unread_table(listing.schema, listing.keys.pieces(), listing.num_bytes, _fields(listing))
    )


def _read(group: _Group) -> Shard:
    """Reads the files of a group for their checksums; raises SourceError, StorageError."""
    listing, running = group.listing, files.new_hash(files.DEFAULT_DIGEST)
    table, sizes = SampleTableBuilder(listing.schema), np.zeros(len(listing), np.int64)
    done = group.row.counts() if group.row else unseen()
    with group.source.reader(listing) as read:
        for number in range(len(listing)):
            sample = listing.schema.check(read(number))
            image = sample.fields["image"]
            sizes[number] = len(image)
            running.update(image)
            table.append(sample)
            if not number % EVERY:
                done[:] = number, int(sizes.sum())
    return group.publish(sizes, f"{files.DEFAULT_DIGEST}:{running.hexdigest()}", table.to_bytes())
