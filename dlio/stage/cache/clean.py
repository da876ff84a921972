"""Cleaning: ends a job's leases, removes unused copies, and sweeps up what interrupted runs left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dlio.errors import StorageError
from dlio.io.open_folder import OpenFolder
from dlio.stage.cache import lease
from dlio.stage.cache.base_folder import (
    CACHE,
    CLAIMS,
    CONTROL,
    LEASES,
    MARKER,
    copy_named,
    is_own,
    marker_of,
    may_change,
    open_cache,
    open_dest,
)
from dlio.stage.cache.folder import ASIDE, StagedFolder
from dlio.stage.cache.locations import folders_to_clean, folders_with_copies
from dlio.stage.cache.node_cache import LEAVING, REMOVED, copies, discard, forget_claims, is_in_use, remove_unused
from dlio.stage.cache.ownership import own_dest
from dlio.stage.live.agent import meeting
from dlio.stage.live.folder import LiveFolder


def clean(dest: str | os.PathLike[str] | None = None, *, job: str | None = None, keep: bool = False) -> list[Path]:
    """Ends this job's leases below `dest`, removes all copies that no other job uses, and returns their folders.

    Args:
        dest: the folder given to `stage`; by default those that it chooses from. In other `known_folders` leases end,
            and copies stay.
        job: the scheduler's job id; by default this job's.
        keep: only end the leases, and leave the copies for the next job.

    Raises:
        StorageError: a folder cannot be read, or a lease cannot be removed.
    """
    removed: list[Path] = []
    problems: list[StorageError] = []
    job = lease.job_name() if job is None else job
    cleaned = folders_to_clean(dest)
    for folder in folders_with_copies(dest):
        try:
            removed += _clean_one(folder, job, keep or folder not in cleaned)
        except StorageError as error:
            problems.append(error)
    meeting.forget(job)
    if problems:
        raise problems[0]
    return removed


def forsake(dest: Path, copy: str) -> None:
    """Ends the job's lease on a copy that could not be made, and removes what nothing is in; for a job of one process.

    A copy that was begun stays, so that the next run goes on with it.
    """
    for each in (dest, own_dest(dest)):
        with suppress(StorageError):
            if not StagedFolder(each, copy).path.exists():
                lease.drop(StagedFolder(each, copy), lease.job_name())
                _sweep(each)


def _clean_one(dest: Path, job: str, keep: bool) -> list[Path]:
    """Returns the folders of the copies removed from one folder; raises as `clean`."""
    removed = []
    if not keep:
        _give_back(dest)
    for copy in copies(dest):
        lease.drop(copy, job)
        if not keep and not _is_leased(copy):
            LiveFolder(copy).end_agent()
        if not keep and remove_unused(copy):
            removed.append(copy.path)
    if not keep:
        _sweep(dest)
    return removed


def _is_leased(copy: StagedFolder) -> bool:
    try:
        return bool(lease.leases(copy))
    except OSError:  # leases that cannot be read may be in force
        return True


def _give_back(dest: Path) -> None:
    """Renames copies back whose removal was interrupted before it was certain."""
    with suppress(OSError), open_cache(dest) as cache:
        for leaving, copy in _renamed(cache, LEAVING):
            with suppress(OSError):  # renamed meanwhile, or another user's
                cache.rename(leaving, copy if cache.look(copy) is None else REMOVED + leaving.removeprefix(LEAVING))


def _renamed(cache: OpenFolder, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the entries whose removal has begun, each with the name of its copy."""
    for name in cache.names():
        copy = name.removeprefix(prefix).partition("-")[2]
        if name.startswith(prefix) and copy_named(copy):
            yield name, copy


def _sweep(dest: Path) -> None:
    """Removes what interrupted removals left, then the cache's own folders if they are empty."""
    with suppress(OSError):
        with open_cache(dest) as cache:
            for name, _ in _renamed(cache, REMOVED):
                status = cache.look(name)
                if status is not None and may_change(status.st_uid):
                    discard(StagedFolder(dest, name))
            for name in filter(copy_named, cache.names()):
                _remove_unmarked(StagedFolder(dest, name), cache)
            lease.sweep(cache)
            with suppress(OSError), cache.below(CLAIMS) as claims:
                for name in claims.names():
                    forget_claims(cache, name)
            for name in (CLAIMS, LEASES):
                with suppress(OSError):
                    cache.rmdir(name)
        with open_dest(dest) as opened:
            opened.rmdir(CACHE)
        if is_own(dest):
            with OpenFolder.at(dest.parent) as around:
                around.rmdir(dest.name)


def _remove_unmarked(folder: StagedFolder, cache: OpenFolder) -> None:
    """Removes a copy without a marker that holds nothing but an unfinished marker: its stage was killed early."""
    with suppress(OSError):
        with cache.below(folder.copy) as copy:
            if not may_change(copy.owner) or marker_of(copy) or is_in_use(folder):
                return
            with suppress(OSError), copy.below(CONTROL, ASIDE) as aside:
                for token in aside.names():
                    _remove_begun(aside, token)
            with suppress(OSError), copy.below(CONTROL) as control:
                control.rmdir(ASIDE)
            with suppress(OSError):
                copy.rmdir(CONTROL)
        cache.rmdir(folder.copy)


def _remove_begun(aside: OpenFolder, token: str) -> None:
    """Removes the folder of unfinished files of one stage, if it holds nothing but a marker."""
    with aside.below(token) as folder:
        names = folder.names()
        if all(name.lstrip(".").startswith(MARKER) for name in names):
            for name in names:
                folder.remove(name, aside.owner)
    aside.rmdir(token)
