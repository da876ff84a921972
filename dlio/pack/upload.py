"""Packing to the URL of an object store: shards are written on the workers' disks, and sent when they are whole.

    OUT/.dlio-packing/header          the header of the manifest with a digest line, while the data set is being packed
    OUT/.dlio-packing/shard-000000    the shard's line of the manifest with a digest line, sent after the shard's files
    OUT/shard-000000.tfrecord
    OUT/manifest.jsonl                sent when all shards are complete; then OUT/.dlio-packing is removed

A store shows a file only when it is whole, so there is nothing to rename. A run that continues keeps the shards whose
lines are there and whose files have the right sizes. Nothing prevents two commands from packing to one URL at the same
time; if they are the same, both send the same bytes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from dlio.dataset import manifest, seal
from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.remote import fetch_manifest, load
from dlio.errors import ManifestError, StorageError, UsageError
from dlio.executors import Pool
from dlio.io import files
from dlio.io.ground import temporary_base
from dlio.io.remote_files import RemoteFiles, check_writable
from dlio.pack.overwrite import check_same
from dlio.pack.plan import ShardPlan, shard_number
from dlio.pack.prefetch import side_by_side
from dlio.pack.request import Asked, PackPlan, plan_to_write
from dlio.pack.resume import FolderContents, names_of
from dlio.pack.run import begin, check_keys, whole_manifest, write_missing
from dlio.pack.write import ASIDE
from dlio.urls import shown

_HEADER = "header"
_MOST_BYTES = 16 << 20  # of a header or a line, which may name entries that were refused or skipped


def pack_to_url(url: str, asked: Asked) -> Manifest:
    """Packs a source into shards at a URL and returns their manifest; raises as `dlio.pack`."""
    files.new_hash(asked.writing.digest)
    url = url.rstrip("/")
    if asked.overwrite:
        raise UsageError(f"--overwrite works only for a folder: remove {shown(url)} first, or give another URL")
    check_writable(url)
    with asked.engine as pool:
        if pool is None:  # this rank was a worker of rank 0, which is done
            return load(url)
        if f"{shown(url)}/".startswith(f"{str(asked.source.path).rstrip('/')}/"):
            raise UsageError(f"{shown(url)} is inside the input: give another URL to write")
        plan = replace(plan_to_write(asked), parts={})  # a store has no files to write into
        with closing(RemoteFiles(url, is_alone=True)) as store:  # closed before workers are forked
            held = _look(store, url)
            check_same(held, plan.header, plan.inputs, plan.listing.keys, "give another URL, or remove what is there")
            done = held.finished(plan.header, plan.inputs)
            if held.published is not None and len(done) == len(plan.shards):
                _clear(store)
                return held.published
            store.put(f"{ASIDE}/{_HEADER}", seal.sealed_line(manifest.header(plan.header)))
        return _pack(plan, url, done, asked, pool)


def _look(store: RemoteFiles, url: str) -> FolderContents:
    """Returns what is at a URL; raises ManifestError, StorageError."""
    names = store.names()
    published = replace(fetch_manifest(store), url=url) if manifest.NAME in names else None
    begun = _begun(store) if ASIDE in names else None
    unlisted = {name for name in names if begun is not None and shard_number(name) is not None}
    own = names_of(published) | names_of(begun) | unlisted
    known = {manifest.NAME, ASIDE, *(name.partition("/")[0] for name in own)}
    foreign = [name for name in names if name not in known]
    sizes = {name: entry.get("size") or 0 for name, entry in store.files_below("")} if own else {}
    return FolderContents(Path(str(store)), published, begun if own else None, own, foreign, sizes)


def _begun(store: RemoteFiles) -> Manifest | None:
    """Returns the header and the shards of a data set that was begun."""
    names = sorted(name for name, _ in store.files_below(ASIDE))
    if f"{ASIDE}/{_HEADER}" not in names:
        return None
    lines = side_by_side(lambda name: store.fetch(name, _MOST_BYTES), names, weigh=len)  # "header" sorts before "shard"
    try:
        return manifest.unfinished(b"".join(lines), Path(str(store)) / ASIDE / _HEADER)
    except ManifestError as error:
        raise ManifestError(f"{error}: remove {store}/{ASIDE}, and the same command packs again") from error


def _pack(plan: PackPlan, url: str, done: dict[str, Shard], asked: Asked, pool: Pool) -> Manifest:
    """Writes and sends the missing shards, then the manifest."""
    todo = begin(asked, plan, done)
    with tempfile.TemporaryDirectory(prefix="dlio-pack-", dir=temporary_base()) as name:
        folder = Path(name)
        _check_room(folder, plan, todo, pool.workers)
        done |= write_missing(plan, todo, folder, asked, pool, url=url)
        whole = whole_manifest(plan, done, Path(shown(url)))
        if plan.listing.gives_several:
            check_keys(replace(whole, url=url))
        store = RemoteFiles(url)
        store.put(manifest.NAME, whole.save(folder))
    _clear(store)
    return replace(whole, url=url)


def _check_room(folder: Path, plan: PackPlan, todo: Sequence[ShardPlan], workers: int) -> None:
    """Checks that a folder has room for a shard of each worker."""
    largest = sorted((shard.num_bytes for shard in todo), reverse=True)
    free, needed = shutil.disk_usage(folder).free, 0 if plan.recode.changes_pixels else sum(largest[:workers])
    if free < needed:
        raise StorageError(
            f"{folder.parent} has {free:,} bytes free, {needed:,} are needed for a shard of each worker: set TMPDIR to "
            "a larger folder, or give fewer --workers, or more shards"
        )


def _clear(store: RemoteFiles) -> None:
    """Removes the files that only a resumed run needs, the header last."""
    header, *lines = sorted(name for name, _ in store.files_below(ASIDE)) or [f"{ASIDE}/{_HEADER}"]
    for _ in side_by_side(store.remove, lines):
        pass
    store.remove(header)
    store.drop_unfinished()
