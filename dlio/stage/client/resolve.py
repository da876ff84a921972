"""Finds the staged copy of a data set on this node by its content id; only safe copies count."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dlio.dataset import remote
from dlio.dataset.manifest import Manifest
from dlio.dataset.shard import files_of
from dlio.errors import ManifestError, StorageError
from dlio.io.arrivals import NoRoomError
from dlio.stage.copies.base_folder import CONTROL, MARKER, copy_named
from dlio.stage.copies.folder import StagedFolder, in_words_missing
from dlio.stage.copies.lease import take
from dlio.stage.copies.locations import known_folders, loose_around, own_dest, safe_copies
from dlio.stage.planning.plan import has_parts
from dlio.stage.sources import source_of
from dlio.urls import is_url, shown

if TYPE_CHECKING:
    from dlio.stage.client.filling import LiveFilling

_log = logging.getLogger(__name__)


def resolve(dataset: str | os.PathLike[str]) -> Path:
    """Returns the folder of this node's staged copy of a data set, leased for this job; `dataset` if it has no copy.

    The copies are searched in the folders in DLIO_STAGED (separated by ":"), then in the node's local folders, then
    where this user or root has staged on this node. Only copies of this user or root count; to read another user's
    copy, give its folder as the data set. A log line of level INFO says what is read.

    Args:
        dataset: the folder or URL that was given to `stage`.

    Raises:
        ManifestError: `dataset` holds no data set.
        StorageError: it cannot be read, or `dataset` is a URL and this node has no copy.
        UsageError, MissingPackageError: a URL of an unknown kind, or whose package is not installed.
    """
    return staged(dataset).root


def staged(dataset: str | os.PathLike[str]) -> Manifest:
    """Returns the manifest of the copy that `resolve` finds; raises as it does."""
    return opened(dataset, is_complete=True)[0]


def opened(dataset: str | os.PathLike[str], *, is_complete: bool = False) -> tuple[Manifest, LiveFilling | None]:
    """Returns the manifest of the copy that `resolve` finds, or of one that is filled, with that; raises as it does.

    Args:
        dataset: as `resolve`.
        is_complete: copies that are being filled do not count.
    """
    wanted = source_of(dataset).manifest
    for folder in _candidates(wanted.content_id):
        take(folder)
        found, filling = _proved(folder, wanted), None
        try:
            lacking = folder.missing(files_of(found.shards_here)) if found else []
        except StorageError as error:
            _log.warning("a staged copy is ignored: %s", error.text)
            continue
        if not is_complete and (found is None or lacking or has_parts(found)):
            from dlio.stage.client.filling import find_filling  # the engine: a loader of complete data needs it not

            try:
                filling = find_filling(folder, dataset)
            except NoRoomError as error:
                _log.warning("%s", error.text)
                return remote.load(dataset), None
        if filling is not None and filling.manifest.content_id == wanted.content_id:
            _log.info("%s is read from %s, which is being filled", _shown(dataset), folder.path)
            return filling.manifest, filling
        if found is not None and lacking:  # they were removed, maybe by what cleans the disks of nodes
            _tell_of(folder.path, in_words_missing(lacking))
            if has_parts(found):  # the ranks of other nodes read in the order of parts
                return _unstaged(dataset, replace(found, root=wanted.root)), None
        elif found is not None:
            _log.info("%s is read from its staged copy %s", _shown(dataset), found.root)
            return found, None
    return _unstaged(dataset, wanted), None


@cache  # once, not for each loader
def _tell_of(path: Path, problem: str) -> None:
    _log.warning("%s is ignored: %s: dlio verify %s --repair restores it, dlio clean removes it", path, problem, path)


def _unstaged(dataset: str | os.PathLike[str], wanted: Manifest) -> Manifest:
    if is_url(dataset):
        raise StorageError(
            f"no complete copy of {_shown(dataset)} is on this node: run dlio stage with it first, or give cache=True"
        )
    _check_name(wanted)
    _log.info("%s is read in place: this node has no copy of %s", _shown(dataset), wanted.content_id)
    return wanted


def _shown(dataset: str | os.PathLike[str]) -> str:
    return shown(os.fspath(dataset))


def _candidates(content_id: str) -> Iterator[StagedFolder]:
    """Yields the copies of a data set on this node that only this user or root can change."""
    for named in known_folders():
        if loose := loose_around(named):
            advice = f"chmod +t {loose[0]} makes it safe"
            _log.warning("%s is ignored: anybody could replace what is staged there (%s)", named, advice)
            continue
        yield from safe_copies(content_id, (named, own_dest(named, 0)))


def _proved(folder: StagedFolder, wanted: Manifest) -> Manifest | None:
    """Returns a finished copy's manifest if it is the data set that is wanted; else logs why not."""
    if not folder.has_manifest():
        return None
    try:
        found = Manifest.load(folder.path)
    except (ManifestError, StorageError) as error:
        _log.warning("a staged copy is ignored: %s", error)
        return None
    if found == wanted or found.content_id == wanted.content_id:
        return found
    _log.warning("%s is ignored: it holds another data set, %s: dlio clean removes it", folder.path, found.content_id)
    return None


def _check_name(manifest: Manifest) -> None:
    """Raises ManifestError if `dataset` is a staged copy that holds another data set than its name says."""
    name = manifest.root.absolute().name
    is_staged = copy_named(name) and (manifest.root / CONTROL / MARKER).exists()
    if is_staged and not name.startswith(manifest.content_id):
        raise ManifestError(f"{manifest.root} holds another data set, {manifest.content_id}: stage it again")
