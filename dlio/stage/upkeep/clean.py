"""Cleaning: ends a job's leases, removes unused copies, and sweeps up what interrupted runs left.

What other users have on the node can be hostile, and large: all of it has one deadline. Leases end first, then agents,
and a copy whose removal is cut off is removed by the next run.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from dlio.cluster.launchers import job_name
from dlio.errors import StorageError
from dlio.io.open_folder import OpenFolder
from dlio.rights.as_owner import in_time
from dlio.rights.patience import DEADLINE_SECONDS, Patience
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import (
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
from dlio.stage.copies.folder import ASIDE, StagedFolder
from dlio.stage.copies.live_folder import END_SECONDS, LiveFolder, end_agents
from dlio.stage.copies.locations import folders_to_clean, folders_with_copies, own_dest
from dlio.stage.copies.node_cache import (
    LEAVING,
    REMOVED,
    copies,
    discard,
    forget_claims,
    is_in_use,
    remove_unused,
    why_kept,
)
from dlio.stage.meeting import folder as meeting_folder

_FOUND, _REMOVED, _KEPT, _LEFT = "found", "removed", "kept", "left"  # outcomes of copies

_log = logging.getLogger(__name__)


def _warn(path: Path, why: str) -> None:
    _log.warning("%s is left: %s", path, why)


def clean(
    dest: str | os.PathLike[str] | None = None,
    *,
    job: str | None = None,
    keep: bool = False,
    deadline: float = DEADLINE_SECONDS,
    left: Callable[[Path, str], None] = _warn,
    kept: Callable[[Path, str], None] = lambda _, __: None,
) -> list[Path]:
    """Ends this job's leases below `dest`, removes all copies that no other job uses, and returns their folders.

    Args:
        dest: the folder given to `stage`; by default those that it chooses from. In other `known_folders` leases end,
            and copies stay.
        job: the scheduler's job id; by default this job's.
        keep: only end the leases, and leave the copies for the next job.
        deadline: the seconds that all of it may take, for root whatever other users have there; another user's may
            take as long as the removal of one of its own copies longer.
        left: called with each copy that nobody was seen to use and that is left, and why; by default logs a warning.
        kept: called with each other copy that stays in the folders that are cleaned, and who uses it.

    Raises:
        StorageError: a folder cannot be read, or a lease cannot be removed.
    """
    job = job_name() if job is None else job
    removed: list[Path] = []
    due: dict[str, None] = {}
    try:
        for paths, outcome, why in in_time(partial(_outcomes, dest, job, keep, deadline), Patience(deadline)):
            if outcome == _FOUND:
                due |= dict.fromkeys(paths)
                continue
            del due[paths[0]]
            if outcome == _REMOVED:
                removed.append(Path(paths[0]))
            elif why:
                (left if outcome == _LEFT else kept)(Path(paths[0]), why)
    except StorageError as error:
        if error.errno != errno.ETIMEDOUT:
            raise
        for path in due or [str(dest or "all that is staged on this node")]:
            left(Path(path), error.text)
    return removed


def _outcomes(
    dest: str | os.PathLike[str] | None, job: str, keep: bool, deadline: float
) -> Iterator[tuple[list[str], str, str]]:
    """Yields the copies of a folder when they are found, and each again with its outcome and why; raises as `clean`."""
    found: list[StagedFolder] = []
    problems: list[StorageError] = []
    cleaned = [] if keep else folders_to_clean(dest)
    for folder in folders_with_copies(dest):
        try:
            here = _released(folder, job, folder not in cleaned)
            yield [str(copy.path) for copy in here], _FOUND, ""
            found += here
        except StorageError as error:
            problems.append(error)
    unused = [LiveFolder(copy) for copy in found if copy.dest in cleaned and not lease.is_leased(copy)]
    running = end_agents(unused, min(END_SECONDS, deadline / 2))
    meeting_folder.forget(job)
    for copy in found:
        if agent := running.get(LiveFolder(copy)):
            yield [str(copy.path)], _LEFT, f"its agent, process {agent.pid}, has not ended"
        elif copy.dest not in cleaned:
            yield [str(copy.path)], _KEPT, ""
        elif remove_unused(copy):
            yield [str(copy.path)], _REMOVED, ""
        else:
            yield [str(copy.path)], _KEPT, why_kept(copy)
    for folder in cleaned:
        _sweep(folder)
    if problems:
        raise problems[0]


def _released(dest: Path, job: str, keep: bool) -> list[StagedFolder]:
    """Returns the copies in a folder after ending the job's leases on them; raises as `clean`."""
    if not keep:
        _give_back(dest)
    lease.drop(dest, job)
    return copies(dest)


def abandon(dest: Path, copy: str) -> None:
    """Drops the lease on a copy that could not be made, and removes empty folders; for a job of one process.

    A copy that was begun stays: the next run continues it.
    """
    for each in (dest, own_dest(dest)):
        with suppress(StorageError):
            if not StagedFolder(each, copy).path.exists():
                lease.drop(each, job_name(), copy)
                _sweep(each)


def _give_back(dest: Path) -> None:
    """Renames copies back whose removal was interrupted before it was certain."""
    with suppress(OSError), open_cache(dest) as cache:
        for leaving, copy in _renamed(cache, LEAVING):
            with suppress(OSError):  # renamed by now, or another user's
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
            with suppress(OSError), copy.below(CONTROL) as control:
                _remove_begun(control)
            with suppress(OSError):
                copy.rmdir(CONTROL)
        cache.rmdir(folder.copy)


def _remove_begun(control: OpenFolder) -> None:
    """Removes a marker that was not published, if nothing else lies there; raises OSError."""
    with control.below(ASIDE) as aside:
        names = aside.names()
        if all(name.lstrip(".").startswith(MARKER) for name in names):
            for name in names:
                aside.remove(name, control.owner)
    control.rmdir(ASIDE)
