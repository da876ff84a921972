"""The node cache: the staged copies below DEST/dlio, shared by jobs and users; what may go, and what is found again.

Only folders with dlio's marker are ever removed, and of these only ones that no job leases and nobody is filling.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dlio import files
from dlio.claim import forget, is_in_progress
from dlio.errors import StorageError
from dlio.filesystems import FileSystem, check_room, filesystem_of, local_folders
from dlio.manifest import NAME
from dlio.stage.folder import StagedFolder
from dlio.stage.lease import drop, job_name, leases, take
from dlio.stage.source import source_of
from dlio.stage.trust import OWN, is_safe, own_dest
from dlio.urls import is_url, shown

STAGED_VARIABLE = "DLIO_STAGED"
# What goes is renamed twice: to the first name while its leases are read again, to the second once it is certain.
_LEAVING, _REMOVED = ".leaving-", ".removed-"


def copies(dest: Path) -> list[StagedFolder]:
    """Returns the copies below `dest/dlio` that bear dlio's marker, the least recently used first.

    Raises:
        StorageError: the folder cannot be read.
    """
    found = []
    with files.storage_errors("look at", dest / "dlio"):
        entries = list((dest / "dlio").glob("[!.]*"))
    for path in entries:
        folder = StagedFolder(dest, path.name)
        try:
            found.append((folder.marker.stat().st_mtime, folder.copy, folder))
        except OSError:
            continue  # no marker: not dlio's
    return [folder for *_, folder in sorted(found)]


def is_in_use(folder: StagedFolder) -> bool:
    """Returns whether a job leases the copy, or a process is filling it."""
    return any(leases(folder)) or is_in_progress(folder.claims)


def room(folder: StagedFolder) -> int:
    """Returns the bytes that a copy may come to hold: what is free, what it holds already, and what may be evicted."""
    evictable = [folder, *(other for other in copies(folder.dest) if other != folder and not is_in_use(other))]
    held = sum(path.lstat().st_size for other in evictable for path in other.path.rglob("*") if path.is_file())
    return filesystem_of(folder.dest).free_bytes + held


def make_room(folder: StagedFolder, needed_bytes: int, needed_files: int) -> FileSystem:
    """Returns the file system of a copy once it takes so much more, having removed unused copies, oldest use first.

    Raises:
        StorageError: even then it does not; the message says what is needed, what is free, and what is in use.
    """
    while True:
        try:
            return check_room(folder.path, needed_bytes, needed_files)
        except StorageError as error:
            others = [other for other in copies(folder.dest) if other != folder]
            if not any(remove_unused(other) for other in others):
                used = "".join(f"; {other.path} is in use" for other in others)
                raise StorageError(error.errno, f"{error.strerror}{used}") from error


def remove_unused(folder: StagedFolder) -> bool:
    """Removes a copy unless it is in use or another user's; returns whether it has.

    The folder is renamed first and the leases are read again: a job that leased it between the two looks gets it back,
    and one that comes later finds nothing, and stages anew. Where all may rename in DEST/dlio, another user's copy,
    whose files only its owner can remove, keeps its name.
    """
    if is_in_use(folder) or not os.access(folder.path, os.W_OK):
        return False
    token = secrets.token_hex(8)
    away, doomed = (StagedFolder(folder.dest, prefix + f"{token}-{folder.copy}") for prefix in (_LEAVING, _REMOVED))
    try:
        folder.path.rename(away.path)
        if is_in_use(folder) and not folder.path.exists():
            away.path.rename(folder.path)
            return False
        with suppress(OSError):
            forget(folder.claims)  # before it takes time: a job that stages anew meanwhile has a claim of its own
        away.path.rename(doomed.path)
    except OSError:  # another user's, or another process was quicker: it removes it, or gave it back
        return False
    _discard(doomed)
    return True


def _discard(folder: StagedFolder) -> None:
    """Removes a copy that has been renamed for it, or what an interrupted removal left; others may be at the same.

    Raises:
        StorageError: it cannot be removed.
    """
    try:
        if folder.marker.exists():
            folder.remove()
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
    for empty in (folder.marker.parent, folder.path):
        with suppress(OSError):
            empty.rmdir()


def clean(dest: str | os.PathLike[str] | None = None, *, job: str | None = None, keep: bool = False) -> list[Path]:
    """Ends this job's leases below `dest` and returns the copies removed: all that nobody else uses.

    Args:
        dest: the folder given to `stage`; by default every folder that `local_folders` and DLIO_STAGED name.
        job: the scheduler's job id; by default this job's.
        keep: end the leases only, and leave the copies for the next job.

    Raises:
        StorageError: a copy cannot be removed.
    """
    removed = []
    places = [Path(dest).absolute()] if dest is not None else _places()
    for folder in (each for place in places for each in _with_own(place)):
        if not keep:
            _give_back(folder / "dlio")
        for copy in copies(folder):
            drop(copy, job_name() if job is None else job)
            if not keep and remove_unused(copy):
                removed.append(copy.path)
        if not keep:
            _sweep(folder)
    return removed


def _give_back(cache: Path) -> None:
    """Gives the copies that were neither kept nor removed when their removal was interrupted their names again."""
    for leaving in cache.glob(f"{_LEAVING}*"):
        token_and_copy = leaving.name.removeprefix(_LEAVING)
        copy = cache / token_and_copy.partition("-")[2]
        with suppress(OSError):  # decided meanwhile, or another user's
            leaving.rename(cache / (_REMOVED + token_and_copy) if copy.exists() else copy)


def _sweep(dest: Path) -> None:
    """Removes what interrupted removals left, then the cache's own folders if nothing is left in them.

    Raises:
        StorageError: a copy cannot be removed.
    """
    cache = dest / "dlio"
    for leftover in cache.glob(f"{_REMOVED}*"):
        if leftover.lstat().st_uid == os.geteuid():
            _discard(StagedFolder(dest, leftover.name))
    below = (folder for pattern in (".claims/*/*", ".claims/*", ".leases/*") for folder in cache.glob(pattern))
    own = [dest] if dest.name.startswith(OWN) else []
    for folder in (*below, cache / ".claims", cache / ".leases", cache, *own):
        try:
            folder.rmdir()
        except OSError:
            continue  # in use, or never made


def resolve(dataset: str | os.PathLike[str]) -> Path:
    """Returns the folder of this node's staged copy of a data set, leased for this job; `dataset` where there is none.

    `dataset` is the folder or URL that was given to `stage`.

    Looked through are the folders in DLIO_STAGED (separated by ":"), then the node's local folders. Copies of this user
    or root come first, and in the local folders only they count: a world-writable /tmp could hold anybody's.

    Raises:
        ManifestError: there is no data set at `dataset`.
        StorageError: it cannot be read, or `dataset` is a URL and no copy is here.
        UsageError, MissingPackageError: a URL of a kind that is unknown, or whose package is not installed.
    """
    manifest = source_of(dataset).manifest
    for dest in _places():
        trusted, others = _candidates(dest, manifest.content_id)
        for copy in [*trusted, *others] if dest in _named_places() else trusted:
            take(copy)
            if (copy.path / NAME).exists():
                return copy.path
    if is_url(dataset):
        raise StorageError(f"no copy of {shown(os.fspath(dataset))} is on this node: run dlio stage with it first")
    return Path(dataset)


def _candidates(dest: Path, content_id: str) -> tuple[list[StagedFolder], list[StagedFolder]]:
    """Returns the complete copies of a data set at `dest` that are this user's or root's, and those of others.

    Of each the whole ones come first, then those of its parts.
    """
    trusted: list[StagedFolder] = []
    others: list[StagedFolder] = []
    for place in (dest, own_dest(dest)):
        for path in sorted((place / "dlio").glob(f"{content_id}*")):
            folder = StagedFolder(place, path.name)
            if folder.has_manifest():
                (trusted if is_safe(folder, os.geteuid()) else others).append(folder)
    return trusted, others


def _named_places() -> Sequence[Path]:
    return [Path(name).absolute() for name in os.environ.get(STAGED_VARIABLE, "").split(os.pathsep) if name]


def _places() -> list[Path]:
    return [*_named_places(), *(folder.absolute() for _, folder in local_folders())]


def _with_own(dest: Path) -> list[Path]:
    """Returns `dest` and what users have in its place: this user, or all of them for root."""
    return [dest, *sorted(dest.glob(f"{OWN}*" if os.geteuid() == 0 else own_dest(dest).name))]
