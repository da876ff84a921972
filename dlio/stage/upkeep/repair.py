"""Repair of a staged copy: missing and damaged files are copied again from the source.

Each is copied aside, verified by its digest, and renamed over the damaged file; readers that have the old file open
keep it. The copy is claimed during this, so no other process removes it, stages into it, or repairs it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlio.dataset.location import TREE
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.dataset.shard import Shard, files_of
from dlio.dataset.tree import differing
from dlio.errors import DlioError, ManifestError, StorageError, UsageError
from dlio.io.filesystems import filesystem_of
from dlio.locking.claim import claimed
from dlio.rights.access import Access
from dlio.stage.copies.base_folder import CACHE, copy_named
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.learned import Learned
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import is_safe
from dlio.stage.engine.complete import Claims, begin_copy, residue_removed
from dlio.stage.engine.failures import ADVICE
from dlio.stage.engine.fetch import Fetching
from dlio.stage.engine.fill import Fill
from dlio.stage.engine.store import Store
from dlio.stage.planning.plan import Plan, partitioned
from dlio.stage.protocol.wire import BEAT_SECONDS
from dlio.stage.sources import StagingSource
from dlio.stage.sources.anything import anything
from dlio.stage.upkeep.at_rest import CopyAtRest


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair.

    Attributes:
        repaired: the names of the files that were damaged and are whole now.
        not_repaired: why other files are still damaged, by the file's name.
    """

    repaired: Sequence[str] = ()
    not_repaired: dict[str, str] = field(default_factory=dict)


def staged_copy(path: Path) -> StagedFolder | None:
    """Returns the staged copy in the folder `path`, or None if that is another kind of folder."""
    real = Path(os.path.realpath(path))
    folder = StagedFolder(real.parent.parent, real.name)
    is_copy = real.parent.name == CACHE and copy_named(real.name) and folder.marker.is_file()
    return folder if is_copy else None


def manifest_at_rest(folder: StagedFolder) -> Manifest:
    """Returns the manifest of a copy, which agrees with the copy's name.

    Raises:
        ManifestError: it is missing or damaged, or belongs to another data set.
        StorageError: it cannot be read.
    """
    with CopyAtRest(folder.path) as copy:
        manifest = copy.manifest()
    name = copy_named(folder.copy)
    if name is None or manifest.content_id != name["content_id"]:
        raise ManifestError(f"{manifest.root / NAME} has the content id {manifest.content_id}, not its folder's")
    if manifest.node != (None if name["node"] is None else int(name["node"])):
        raise ManifestError(f"{manifest.root / NAME} is for the node {manifest.node}, not its folder's")
    return manifest


def manifest_of(folder: StagedFolder, source: str | None = None) -> tuple[Manifest, str]:
    """Returns a copy's manifest and ""; if it is damaged, the manifest that it should have, and what is wrong.

    Raises:
        DlioError: it is damaged, and the source cannot be read; see `origin_of`.
    """
    try:
        return manifest_at_rest(folder), ""
    except (ManifestError, StorageError) as error:
        return _as_staged(origin_of(folder, source), folder), error.text


def origin_of(folder: StagedFolder, source: str | None = None) -> StagingSource:
    """Returns the source of a copy's files: `source`, or the one that the copy's marker names.

    Raises:
        UsageError: the source is another data set, or the marker names none.
        ManifestError, StorageError, MissingPackageError: the source cannot be read.
    """
    named = source or folder.origin()
    try:
        origin = anything(named)
    except (ManifestError, StorageError) as error:
        hint = "" if source else f": {folder.path} was staged from there; name its source with --from"
        raise StorageError(f"{error.text}{hint}") from error
    content_id = folder.copy.partition(".")[0]
    if origin.manifest.content_id != content_id:
        raise UsageError(
            f"{origin} holds another data set than {folder.path}: {_difference(folder, origin.manifest)}; "
            "name its source with --from, or stage again"
        )
    return origin


def _difference(folder: StagedFolder, found: Manifest) -> str:
    """Returns how a data set differs from the staged one, according to the copy's manifest."""
    ids = f"its content id is {found.content_id}"
    try:
        own = manifest_at_rest(folder)
    except DlioError:
        return ids
    facts = {"format": "format", "class_names": "class names", "num_samples": "number of samples", "schema": "schema"}
    other = [text for name, text in facts.items() if getattr(own, name) != getattr(found, name)]
    changed = len(set(files_of(own.shards)) ^ set(files_of(found.shards)))
    return ", ".join([ids, *(f"the {text} differs" for text in other), f"{changed} files are in only one of them"])


def _as_staged(origin: StagingSource, folder: StagedFolder) -> Manifest:
    """Returns the manifest that a copy of this source has; that of a part if the folder's name is a part's.

    Raises:
        UsageError: the folder's name is of an impossible part.
    """
    manifest, name = replace(Learned(folder.path).applied(origin.manifest), root=folder.path), copy_named(folder.copy)
    if name is None or name["node"] is None:
        return manifest
    return replace(partitioned(manifest, int(name["nodes"]), int(name["copies"])), node=int(name["node"]))


def repair(folder: StagedFolder, manifest: Manifest, suspects: Collection[str], origin: StagingSource) -> Repair:
    """Copies those of the files `suspects` again that are damaged, and publishes the manifest.

    Args:
        folder: a copy of this user's.
        manifest: the copy's manifest, as it is or as it should be (`manifest_of`).
        suspects: names of files of the copy; the manifest may be among them. All are checked again, since another
            process may have repaired them.
        origin: the source, as `origin_of` returns it.

    Raises:
        StorageError: another process fills or repairs the copy; the copy was removed; other users could replace it; the
            file system refused.
    """
    with _changing(folder) as (held, claim), CopyAtRest(held.path) as copy:
        wanted = [file for file in files_of(manifest.shards_here) if file.name in suspects]
        damaged = [file for file in wanted if copy.damage(file)]
        begin_copy(held, str(origin), claim)
        failed = {file.name: why for file in damaged if (why := _copy_again(origin, copy, held, file))}
        repaired = [file.name for file in damaged if file.name not in failed]
        held.finish(manifest, repaired, held.access())
        if manifest.format == TREE:
            left = dict(differing(manifest, held.path))
            failed |= {name: left[name] for name in suspects if name in left}
            repaired += [name for name in suspects if name not in {NAME, *failed, *repaired}]
    return Repair([NAME, *repaired] if NAME in suspects else repaired, failed)


def seal(folder: StagedFolder, manifest: Manifest) -> None:
    """Publishes a copy's manifest again, now with a digest line.

    Raises:
        UsageError: the copy's marker names no source.
        StorageError: as `repair`.
    """
    with _changing(folder) as (held, claim):
        begin_copy(held, held.origin(), claim)
        held.finish(manifest, [], held.access())


@contextmanager
def _changing(folder: StagedFolder) -> Iterator[tuple[StagedFolder, Claims]]:
    """Claims a copy of this user's; raises StorageError if others can replace it, or another process changes it."""
    if not is_safe(folder, os.geteuid()):
        raise StorageError(f"{folder.path} can be replaced by another user: stage to another folder")
    folder = replace(folder, user=os.geteuid())
    with claimed(folder.claims, lambda: False, patient=False) as claim:
        if claim is None:
            raise StorageError(
                errno.EBUSY, f"{folder.path} is being staged or repaired by another process: wait for it"
            )
        with residue_removed(folder, claim[0]):
            yield folder, claim
        LiveFolder(folder).remove_unfinished()


def _access(folder: StagedFolder, origin: StagingSource, file: File) -> Access:
    """Returns who may read a repaired file: as before, or as at its source if it was missing."""
    try:
        status = (folder.path / file.name).lstat()
    except FileNotFoundError:
        return origin.access(file)
    return Access(0o600 | status.st_mode & 0o044, status.st_gid)


def _copy_again(origin: StagingSource, copy: CopyAtRest, folder: StagedFolder, file: File) -> str | None:
    """Copies one file again; returns why it is still damaged, or None."""
    try:
        copy.check_folders(file.name)
        filesystem_of(copy.path).check_room(copy.path, file.num_bytes, 1)
        _fetch_again(origin, folder, file, _access(folder, origin, file))
    except StorageError as error:
        return error.text
    return copy.damage(file)


def _fetch_again(source: StagingSource, folder: StagedFolder, file: File, access: Access) -> None:
    """Fetches one file of a claimed copy, and replaces the present one; raises DigestError, StorageError."""
    live = LiveFolder(folder)
    live.make()
    alone = replace(source.manifest, format="", node=None, shards=(Shard(file.name, 1, (file,)),))
    store = Store(live, plan := Plan(alone), {0}, source.name_of, lambda _: access)
    fill = Fill(store, Fetching(source, plan), is_hurried=True)
    fill.follow([0])
    fill.start()
    try:
        while not fill.settled.wait(BEAT_SECONDS):
            if (problem := fill.hanging) and not store.is_whole(0):
                raise StorageError(f"{problem}: {ADVICE}")
    finally:
        if fill.stop():
            store.close()
        source.close()
    if fill.failure and not store.is_complete:
        raise fill.failure
