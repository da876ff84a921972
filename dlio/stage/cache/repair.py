"""Mending a staged copy: files that are missing or damaged come anew from the source, as `stage` brings them.

Each is copied aside, proved by its digest, and renamed over the damaged one; a reader that has that open keeps it. The
copy is claimed meanwhile, so that nobody removes it, stages into it, or mends it too.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dlio.dataset.manifest import NAME, File, Manifest
from dlio.errors import DlioError, ManifestError, StorageError, UsageError
from dlio.io.filesystems import check_room
from dlio.locking.claim import claimed
from dlio.stage.cache.access import Access
from dlio.stage.cache.at_rest import CopyAtRest
from dlio.stage.cache.folder import CONTROL, MARKER, StagedFolder
from dlio.stage.cache.ground import CACHE, copy_named
from dlio.stage.cache.ownership import is_safe
from dlio.stage.planning.placement import partitioned
from dlio.stage.transfer.copy import Copying, Tally, copy_files
from dlio.stage.transfer.fetch import residue_removed
from dlio.stage.transfer.source import Source, source_of
from dlio.urls import is_url

_MOST_MARKER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Repair:
    """What came of a repair.

    Attributes:
        repaired: the names of the files that were brought anew and are whole now.
        not_repaired: the names of those that are still damaged, each with the reason.
    """

    repaired: Sequence[str] = ()
    not_repaired: dict[str, str] = field(default_factory=dict)


def staged_copy(path: Path) -> StagedFolder | None:
    """Returns the staged copy whose folder is `path`, or None where that is another kind of folder."""
    real = Path(os.path.realpath(path))
    folder = StagedFolder(real.parent.parent, real.name)
    is_copy = real.parent.name == CACHE and copy_named(real.name) and folder.marker.is_file()
    return folder if is_copy else None


def manifest_at_rest(folder: StagedFolder) -> Manifest:
    """Returns the manifest of a copy, which is the one that the copy is named after.

    Raises:
        ManifestError: it is missing or damaged, or another data set's.
        StorageError: it cannot be read.
    """
    with CopyAtRest(folder.path) as copy:
        manifest = copy.manifest()
    name = copy_named(folder.copy)
    if name is None or manifest.content_id != name["content_id"]:
        raise ManifestError(f"{manifest.root / NAME} has the content id {manifest.content_id}, not its folder's name")
    if manifest.node != _node(name):
        raise ManifestError(f"{manifest.root / NAME} is of the node {manifest.node}, not of its folder's name")
    return manifest


def manifest_of(folder: StagedFolder, source: str | None = None) -> tuple[Manifest, str]:
    """Returns a copy's manifest and ""; where it is damaged, the one that the copy ought to have, and what is wrong.

    Raises:
        DlioError: it is damaged, and the source cannot be read; as `origin_of` says.
    """
    try:
        return manifest_at_rest(folder), ""
    except (ManifestError, StorageError) as error:
        return _as_staged(origin_of(folder, source), folder), error.text


def _node(name: re.Match[str]) -> int | None:
    return None if name["node"] is None else int(name["node"])


def origin_of(folder: StagedFolder, source: str | None = None) -> Source:
    """Returns where a copy's files are found: `source`, or what the copy says that it was staged from.

    Raises:
        UsageError: what is there is another data set, or the copy does not say where it is from.
        ManifestError, StorageError, MissingPackageError: the source cannot be read.
    """
    named = source or _named_origin(folder)
    try:
        origin = source_of(named)
    except (ManifestError, StorageError) as error:
        hint = "" if source else f": {folder.path} was staged from there; name its source with --from"
        raise StorageError(f"{error.text}{hint}") from error
    content_id = folder.copy.partition(".")[0]
    if origin.manifest.content_id != content_id:
        raise UsageError(
            f"{origin} holds another data set than {folder.path}: {_difference(folder, origin.manifest)}; "
            "name its source with --from, or stage anew"
        )
    return origin


def _named_origin(folder: StagedFolder) -> str:
    """Returns the source that the copy's marker names.

    Raises:
        UsageError: it names none that can be found from here.
    """
    advice = "name the source with --from"
    try:
        with CopyAtRest(folder.path) as copy:
            named = json.loads(copy.read(f"{CONTROL}/{MARKER}", _MOST_MARKER_BYTES))["source"]
    except (StorageError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{folder.marker} does not tell what {folder.path} was staged from: {advice}") from error
    if not isinstance(named, str) or not (is_url(named) or Path(named).is_absolute()):
        raise UsageError(f"{folder.path} was staged from {named!r}, which is no absolute path or URL: {advice}")
    return named


def _difference(folder: StagedFolder, found: Manifest) -> str:
    """Returns in what a data set differs from the one that was staged, as far as the copy's manifest tells."""
    ids = f"its content id is {found.content_id}"
    try:
        own = manifest_at_rest(folder)
    except DlioError:
        return ids
    facts = {"format": "format", "class_names": "class names", "num_samples": "number of samples", "schema": "schema"}
    other = [words for name, words in facts.items() if getattr(own, name) != getattr(found, name)]
    changed = len(set(_files(own)) ^ set(_files(found)))
    return ", ".join([ids, *(f"the {words} differs" for words in other), f"{changed} files are in one of the two only"])


def _files(manifest: Manifest) -> list[File]:
    return [file for shard in manifest.shards for file in shard.files]


def _as_staged(origin: Source, folder: StagedFolder) -> Manifest:
    """Returns the manifest that a copy from this source has, which is a part's where the folder is named so.

    Raises:
        UsageError: the folder's name is of no part that there can be.
    """
    manifest, name = replace(origin.manifest, root=folder.path), copy_named(folder.copy)
    if name is None or name["node"] is None:
        return manifest
    return replace(partitioned(manifest, int(name["nodes"]), int(name["copies"])), node=int(name["node"]))


def files_here(manifest: Manifest) -> list[File]:
    """Returns the files that lie in a copy."""
    return [file for shard in manifest.shards_here for file in shard.files]


def repair(folder: StagedFolder, manifest: Manifest, suspects: Collection[str], origin: Source) -> Repair:
    """Brings those of the files `suspects` anew that are damaged, and publishes the manifest; returns what came of it.

    Args:
        folder: the copy, of this user.
        manifest: the copy's manifest, as it is or as it ought to be (`manifest_of`).
        suspects: names of files of the copy, the manifest's own among them. All are looked at once more, since another
            process may have been quicker.
        origin: the source, as `origin_of` returns it.

    Raises:
        StorageError: another process fills or mends the copy; it is gone; others could put another in its place; the
            file system refused.
    """
    if not is_safe(folder, os.geteuid()):
        raise StorageError(f"{folder.path} can be replaced by another user and is left alone: stage to another folder")
    folder = replace(folder, user=os.geteuid())
    with claimed(folder.claims, lambda: False, patient=False) as claim:
        if claim is None:
            raise StorageError(
                errno.EBUSY, f"{folder.path} is being staged or repaired by another process: wait for it"
            )
        with CopyAtRest(folder.path) as copy, residue_removed(folder, claim[0]):
            wanted = [file for file in files_here(manifest) if file.name in suspects]
            damaged = [file for file in wanted if copy.damage(file)]
            aside = folder.begin(str(origin), *claim)
            target = Copying(aside, folder.path, partial(_access, folder, origin))
            failed = {file.name: why for file in damaged if (why := _bring(origin, copy, target, file))}
            repaired = [file.name for file in damaged if file.name not in failed]
            folder.finish(manifest, repaired, folder.access())
    return Repair([NAME, *repaired] if NAME in suspects else repaired, failed)


def _access(folder: StagedFolder, origin: Source, file: File) -> Access:
    """Returns who may read a file that is brought anew: those who might before; if it was gone, as its source says."""
    try:
        status = (folder.path / file.name).lstat()
    except FileNotFoundError:
        return origin.access(file)
    return Access(0o600 | status.st_mode & 0o044, status.st_gid)


def _bring(origin: Source, copy: CopyAtRest, target: Copying, file: File) -> str | None:
    """Brings one file anew; returns why it is still damaged, or None."""
    try:
        copy.check_folders(file.name)
        check_room(copy.path, file.num_bytes, 1)
        copy_files(origin, target, [file], Tally())
    except StorageError as error:
        return error.text
    return copy.damage(file)
