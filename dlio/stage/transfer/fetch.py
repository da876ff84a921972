"""Fetching: one process of a node copies files from the source, the others wait for it."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dlio.dataset.manifest import File, Manifest
from dlio.errors import StorageError
from dlio.io import files
from dlio.locking.claim import claimed
from dlio.locking.claim_file import Claim
from dlio.stage.cache import lease
from dlio.stage.cache.folder import StagedFolder, check_names
from dlio.stage.cache.ground import open_up
from dlio.stage.cache.node_cache import is_being_filled, make_room
from dlio.stage.cache.ownership import check_safe, folder_for_us
from dlio.stage.job import Job, Outcome
from dlio.stage.transfer.copy import Copying, Tally, copy_files

_HEAD_START_SECONDS = 2.0


def fetch(job: Job, manifest: Manifest, copy: str, wanted: Sequence[File]) -> Outcome:
    """Returns the data set staged in the folder `copy`, or in this user's own of it, with the files `wanted` in it.

    Args:
        job: where from and where to.
        manifest: what the staged folder's manifest says.
        copy: the staged folder's name.
        wanted: the files to have there, in the order in which they are copied.

    Raises:
        ManifestError: a file has a name that is reserved.
        DigestError: a source file is damaged.
        StorageError: no room, no permission, an input/output error, or the copier of this node failed.
    """
    check_names(manifest)
    folder = folder_for_us(job.dest, copy, wanted)
    open_up(folder.dest)
    staged = replace(manifest, root=folder.path)
    lease.take(folder)
    if folder.holds(wanted):
        folder.touch()
        check_safe(folder)
        if job.options.mode is not None:
            folder.give([file.name for file in wanted], job.access(None))
        return Outcome(staged)
    _let_the_leader_begin(job, folder, wanted)
    with claimed(folder.claims, lambda: folder.holds(wanted)) as claim:
        if claim is None:
            check_safe(folder)
            return Outcome(staged)
        tally = Tally(job.listeners.report)
        fill(job, folder, wanted, claim, tally)
        folder.finish(manifest, [file.name for file in wanted], job.access(None))
    return Outcome(staged, tally.read, tally.written)


def _let_the_leader_begin(job: Job, folder: StagedFolder, wanted: Sequence[File]) -> None:
    """Waits a moment for the first process of this node, so that the one that copies is the one that reports."""
    deadline = time.monotonic() + _HEAD_START_SECONDS
    while job.topology.local_rank and time.monotonic() < deadline:
        if is_being_filled(folder) or folder.holds(wanted):
            return
        time.sleep(0.01)


def fill(
    job: Job,
    folder: StagedFolder,
    wanted: Sequence[File],
    claim: tuple[Claim, Claim | None],
    tally: Tally,
    create: Callable[[Path, File], None] | None = None,
) -> None:
    """Copies what is missing of `wanted` into a folder claimed for it; the manifest is left to the caller.

    Args:
        job: where from.
        folder: where to.
        wanted: the files, in the order in which they are copied.
        claim: this process's claim, and the one before it.
        tally: counts the bytes.
        create: makes a file before its first byte is written, where a plain one will not do.

    Raises:
        DigestError, StorageError: as `fetch` says.
    """
    with residue_removed(folder, claim[0]):
        aside = folder.begin(str(job.source), *claim)
        with files.storage_errors("look at", folder.path):
            missing = [file for file in wanted if not folder.has(file)]
            begun = sum(path.stat().st_size for path in aside.rglob("*") if path.is_file())
        lacked = sum(file.num_bytes for file in missing) - begun
        make_room(folder, lacked, len(missing))
        if job.listeners.expect:
            job.listeners.expect(lacked)
        copy_files(job.source, Copying(aside, folder.path, job.access, create), missing, tally)


@contextmanager
def residue_removed(folder: StagedFolder, mine: Claim) -> Iterator[None]:
    """Gives back the room of a copy that failed.

    On a full disk all of it goes, since others need the room, unless other nodes fill the same folder or it was whole
    before and may be in use; else only what is not whole, and the next try goes on with the rest. An interrupt leaves
    everything as it is.
    """
    try:
        yield
    except Exception as error:
        full = isinstance(error, StorageError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full and not folder.share and not folder.has_manifest():
            folder.remove()
        else:  # one's own only: whoever took this process for dead may be going on
            shutil.rmtree(folder.aside(mine), ignore_errors=True)
        raise
