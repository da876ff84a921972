"""A data set over image files as they lie: a manifest, lists of the files, and a link to their folder; no copies.

The files are listed once, as for `pack`, and grouped as `pack` would. `dlio.formats.readonly.files` has the layout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
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
from dlio.locking.claim import exclusively
from dlio.pack import shard_progress
from dlio.pack.index import CLAIMS
from dlio.pack.listing.base import FileSource, Listing, Numbers, Source, take
from dlio.pack.listing.classes import check_indices, without_rows
from dlio.pack.listing.image_files import exact_states
from dlio.pack.listing.keys import printable
from dlio.pack.plan import plan_shards
from dlio.pack.prefetch import side_by_side
from dlio.pack.resume import INDEXED
from dlio.pack.sets.index_folder import FORMAT, check_free, next_place, publish, remove_but
from dlio.pack.sets.linked import link_target
from dlio.pack.shard_progress import EVERY, Row, counts
from dlio.pack.sources import open_source
from dlio.urls import is_url

_MOST_FILES = 16384  # of a group: its list is read as a whole, 1 MB
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
    root = Path(out or _default_out(found, folder)).absolute()
    if root.resolve() in (real := folder.resolve(), *real.parents) or real in root.resolve().parents:
        raise UsageError(f"{root} is, lies in, or holds the folder of the files {folder}: give another --out")
    check_ground(root, CLAIMS)
    check_manifests(root, manifest.NAME)
    check_free(root, overwrite)
    listing, times = _listed(found, folder, skips=on_error == "skip")
    least = -(-len(listing) // _MOST_FILES)
    plan = plan_shards(listing.num_bytes)
    plan = plan_shards(listing.num_bytes, num_shards=least) if len(plan) < least else plan
    with files.storage_errors("create", root):
        root.mkdir(parents=True, exist_ok=True)
    with exclusively(root / CLAIMS, f"dlio index of {folder}"):
        old = check_free(root, overwrite)
        remove_but(root, old)
        place = root if old is None else root / next_place(old)
        started(sum(each.num_bytes for each in plan), len(plan))
        with files.storage_errors("link", place / file_list.FOLDER):
            place.mkdir(exist_ok=True)
            (place / file_list.FOLDER).symlink_to(link_target(folder, place))
        rows = shard_progress.rows([each.name for each in plan])
        parts = [(each.name, listing.take(each.indices), take(times, each.indices)) for each in plan]
        groups = [_Group(root, place, name, found, some, own, rows.get(name)) for name, some, own in parts]
        with processes.open(min(num_workers(workers), len(groups)), None) if checksums else nullcontext() as pool:
            made = side_by_side(_unread, groups) if pool is None else map_bounded(pool, _read, groups)
            shards = sorted(shard_progress.reported(made, report), key=lambda shard: shard.name)
        files.sync_folder(place)
        origin = {"source": INDEXED, "path": printable(str(found.path)), "num_shards": len(shards), "kind": found.name}
        origin |= {"plan": files.digest_bytes(repr([shard.files for shard in shards]).encode())}
        origin |= {"refused": [list(map(printable, entry)) for entry in listing.refused]} if listing.refused else {}
        return publish(Manifest(FORMAT, listing.schema, tuple(shards), origin, root), old, folder)


def _folder_of(source: Source) -> Path:
    """Returns the folder of a source's files; raises UsageError if its samples are no files in a folder."""
    folder = source.folder if isinstance(source, FileSource) else None
    if folder is None or is_url(folder):
        if source.name == "packed":
            raise UsageError(f"{source.path} is a dlio data set already: loaders and verbs use it directly")
        advice = "pack it, or give --format for shards of another tool"
        raise UsageError(
            f"{source.path}: only image files in a folder are indexed in place, not {source.name}: {advice}"
        )
    return Path(folder).absolute()


def _default_out(source: Source, folder: Path) -> Path:
    path = Path(str(source.path)).absolute()
    if path.is_dir():
        return path.with_name(f"{path.name}-index")
    if path.parent.resolve().is_relative_to(folder.resolve()):  # the list lies among the files
        return folder.with_name(f"{folder.name}-{path.stem}-index")
    return path.with_name(f"{path.stem}-index")


def _listed(source: Source, folder: Path, *, skips: bool) -> tuple[Listing, Numbers]:
    """Returns the samples with their exact sizes, and when each file was changed last, in ns; int64 of shape (n,)."""
    listing = check_indices(source.listing())
    if listing.left_out:
        log.warning("%s: not indexed: %s", source.path, listing.left_out)
    text = [name for name in listing.schema if listing.schema[name].dtype == "str"]
    if text or "image" not in listing.schema:
        raise UsageError(f"{source.path}: files with text are not indexed in place ({listing.schema}): pack them")
    listing.keys.check_distinct(str(source.path))
    outside = {row: "it is outside the folder" for row, key in enumerate(listing.keys) if not is_inside(key)}
    listing = without_rows(listing, outside)
    sizes, times = exact_states(folder, listing.keys)
    wrong = dict.fromkeys(np.flatnonzero(sizes == 0).tolist(), "it is missing, empty, or not a file")
    for row in np.flatnonzero(sizes > file_list.MOST_BYTES).tolist():
        wrong[row] = f"it has {sizes[row]:,} bytes, an image has at most {file_list.MOST_BYTES:,}"
    listing = without_rows(replace(listing, num_bytes=sizes), wrong)
    if not skips:
        listing.check_whole()
    if not len(listing):
        raise SourceError(f"{source.path} has no files to index")
    return listing, np.delete(times, sorted(wrong))


@dataclass(frozen=True, slots=True)
class _Group:
    """The files of a shard, for a worker; picklable."""

    root: Path
    place: Path
    name: str
    source: Source
    listing: Listing
    times: Numbers
    row: Row | None = None

    def __str__(self) -> str:
        return self.name

    def publish(self, sizes: Numbers, digest: str, table: bytes) -> Shard:
        """Writes the list and the table, and returns the shard's line of the manifest."""
        names = self.listing.keys.pieces
        times = self.times if not digest else np.empty(0, np.int64)
        columns = tuple(np.asarray(values) for values in _fields(self.listing).values())
        ends = names.bounds[1:] - names.bounds[0]
        made = FileList(Path(), sizes, times, ends, names.joined(), columns)
        path = self.place.relative_to(self.root) / self.name
        entries = [File(f"{path}{loose.SUFFIX}", int(sizes.sum()), digest)]
        for suffix, content in ((file_list.SUFFIX, made.to_bytes()), (sample_table.SUFFIX, table)):
            files.publish_bytes(self.root / f"{path}{suffix}", content)
            entries.append(File(f"{path}{suffix}", len(content), files.digest_bytes(content)))
        return Shard(self.name, len(sizes), tuple(entries))


def _fields(listing: Listing) -> Mapping[str, np.ndarray]:
    """Returns the values of all fields but the image, in the schema's order, of its types."""
    return {
        name: listing.columns[name].astype(kind.dtype)
        for name, kind in listing.schema.items()
        if name in listing.columns
    }


def _unread(group: _Group) -> Shard:
    listing, sizes = group.listing, group.listing.num_bytes
    return group.publish(sizes, "", unread_table(listing.schema, listing.keys.pieces, sizes, _fields(listing)))


def _read(group: _Group) -> Shard:
    """Reads the files of a group for their checksums; raises SourceError, StorageError."""
    listing, running = group.listing, files.new_hash(files.DEFAULT_DIGEST)
    table, sizes = SampleTableBuilder(listing.schema), np.zeros(len(listing), np.int64)
    done = counts(group.row)
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
