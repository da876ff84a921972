"""Fetching: one process of a node copies files from the source, the others wait for it."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from dlio.dataset.manifest import File, Manifest
from dlio.errors import StorageError
from dlio.io import files
from dlio.locking.claim import claimed
from dlio.locking.claim_file import Claim
from dlio.stage.cache import lease
from dlio.stage.cache.base_folder import check_names
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.cache.node_cache import is_being_filled, make_room
from dlio.stage.cache.ownership import check_safe, choosing_again, folder_for_us, open_for_us
from dlio.stage.job import Job, Outcome
from dlio.stage.live.folder import LiveFolder
from dlio.stage.transfer.copy import Copying, Create, Tally, copy_files

_HEAD_START_SECONDS = 2.0


def fetch(job: Job, manifest: Manifest, copy: str, wanted: Sequence[File]) -> Outcome:
    """Returns the staged data set in the folder `copy`, which holds the files `wanted`.

    Args:
        job: the source and the destination.
        manifest: the manifest of the staged folder.
        copy: the staged folder's name.
        wanted: the files to copy, in this order.

    Raises:
        ManifestError: a file has a reserved name.
        DigestError: a source file is damaged.
        StorageError: no room, no permission, an input/output error, or the copier of this node failed.
    """
    return choosing_again(partial(_fetch, job, manifest, copy, wanted))


def _fetch(job: Job, manifest: Manifest, copy: str, wanted: Sequence[File]) -> Outcome:
    """Returns as `fetch`; raises TakenError if another user has taken the folder."""
    folder = folder_for_us(job.dest, copy, wanted)
    open_for_us(folder)
    staged = replace(manifest, root=folder.path)
    lease.take(folder)
    if folder.holds(wanted):
        folder.touch()
        check_safe(folder)
        if job.options.mode is not None:
            folder.give([file.name for file in wanted], job.access(None))
        return Outcome(staged)
    check_names(manifest)  # which was done before, if the copy is complete
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
    """Waits a moment for the node's first process to begin, since the process that copies should be the reporter."""
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
    create: Create | None = None,
) -> None:
    """Copies the missing files of `wanted` into a claimed folder; the caller publishes the manifest.

    Args:
        job: the source.
        folder: the target.
        wanted: the files, in the order in which they are copied.
        claim: this process's claim, and the one before it.
        tally: counts the bytes.
        create: makes an unfinished file; None for a plain file.

    Raises:
        DigestError, StorageError: as `fetch`.
    """
    with residue_removed(folder, claim[0]):
        aside = folder.begin(str(job.source), *claim)
        live, previous = LiveFolder(folder), claim[1]
        if live.path.exists():  # an agent's; one that only seems dead may go on writing
            live.hand_over(aside, wanted if previous and previous.is_over else ())
        missing = folder.missing(wanted)
        with files.storage_errors("look at", folder.path):
            begun = sum(path.stat().st_size for path in aside.rglob("*") if path.is_file())
        lacked = sum(file.num_bytes for file in missing) - begun
        make_room(folder, lacked, len(missing))
        if job.listeners.expect:
            job.listeners.expect(lacked)
        copy_files(job.source, Copying(aside, folder.path, job.access, create), missing, tally)


@contextmanager
def residue_removed(folder: StagedFolder, mine: Claim) -> Iterator[None]:
    """Removes what a failed copy leaves.

    On a full disk the whole copy is removed, since others need the room, unless other nodes fill the same folder, or it
    was complete before and may be in use. After other errors only unfinished files are removed, and the next try goes
    on with the rest. An interrupt leaves everything.
    """
    try:
        yield
    except Exception as error:
        full = isinstance(error, StorageError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full and not folder.share and not folder.has_manifest():
            folder.remove()
        else:  # only this process's: one that took it for dead may be going on
            shutil.rmtree(folder.aside(mine), ignore_errors=True)
        raise
