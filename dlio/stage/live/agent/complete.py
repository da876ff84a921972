"""Completing a copy in this process: one process of a node fills it and serves it meanwhile, the others wait for it.

The process that fills is a `dlio stage` or an agent. If it dies, one that waits goes on with its unfinished files.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.locking.claim import claimed
from dlio.locking.claim_file import Claim, is_in_force
from dlio.stage.cache import lease
from dlio.stage.cache.access import Access
from dlio.stage.cache.base_folder import check_names
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.cache.node_cache import is_being_filled, make_room
from dlio.stage.cache.ownership import check_safe, choosing_again, folder_for_us, open_for_us
from dlio.stage.job import Job, Outcome
from dlio.stage.live.agent.fill import Fill
from dlio.stage.live.agent.node import Node
from dlio.stage.live.agent.store import Create, Store
from dlio.stage.live.folder import LiveFolder
from dlio.stage.live.following import Following
from dlio.stage.live.wire import Origin
from dlio.stage.planning.live import Plan
from dlio.stage.transfer.source import StagingSource

_HEAD_START_SECONDS = 2.0
_BEAT_SECONDS = 2.0

Claims = tuple[Claim, Claim | None]  #: this process's claim, and the one before it


def complete(job: Job, plan: Plan, copy: str) -> Outcome:
    """Returns the staged data set in the folder `copy`, once it holds what the plan wants.

    Args:
        job: the source and the destination.
        plan: what this node keeps, and where it comes from.
        copy: the staged folder's name.

    Raises:
        ManifestError: a file has a reserved name.
        DigestError: a source file is damaged.
        StorageError: no room, no permission, an input/output error, or the process that filled the copy failed.
    """
    return choosing_again(partial(_complete, job, plan, copy))


def _complete(job: Job, plan: Plan, copy: str) -> Outcome:
    """Returns as `complete`; raises TakenError if another user has taken the folder."""
    wanted = plan.wanted
    folder = folder_for_us(job.dest, copy, wanted)
    open_for_us(folder)
    staged = replace(plan.manifest, root=folder.path)
    lease.take(folder)
    if folder.holds(wanted):
        if (live := LiveFolder(folder)).path.exists() and not is_being_filled(folder):
            live.remove_unfinished()  # of a process that was killed at its end
        folder.touch()
        check_safe(folder)
        if job.options.mode is not None:
            folder.give([file.name for file in wanted], job.access(None))
        return Outcome(staged)
    check_names(plan.manifest)  # which was done before, if the copy is complete
    following = Following(folder, wanted, job.listeners)
    _let_the_leader_begin(job, folder, following)
    with closing(following), claimed(folder.claims, following.is_done) as claim:
        if claim is None:
            check_safe(folder)
            return Outcome(staged)
        names = [file.name for file in wanted]
        filled = fill(job, plan, folder, claim, lambda: folder.finish(plan.manifest, names, job.access(None)))
    return replace(filled, manifest=staged)


def _let_the_leader_begin(job: Job, folder: StagedFolder, following: Following) -> None:
    """Waits a moment for the node's first process to begin, since the process that copies should be the reporter."""
    deadline = time.monotonic() + _HEAD_START_SECONDS
    while job.topology.local_rank and time.monotonic() < deadline:
        if is_being_filled(folder) or following.is_done():
            return
        time.sleep(0.01)


def fill(
    job: Job, plan: Plan, folder: StagedFolder, claims: Claims, finish: Callable[[], None], create: Create | None = None
) -> Outcome:
    """Returns what was done to bring the missing files of a plan into a claimed folder.

    Args:
        job, plan: as `complete`.
        folder: the target.
        claims: this process's claim, and the one before it.
        finish: called once all files have their names, while the node still serves.
        create: makes an unfinished file; None for a plain file.

    Raises:
        DigestError, StorageError: as `complete`.
    """
    with residue_removed(folder, claims[0]):
        take_over(folder, str(job.source), claims)
        missing = folder.missing(plan.wanted)
        lacked = sum(file.num_bytes for file in missing) - LiveFolder(folder).present_bytes(missing)
        make_room(folder, lacked, len(missing))
        if job.listeners.expect:
            job.listeners.expect(lacked)
        with closing(Node(job, plan, folder, create, is_hurried=True)) as node:
            node.begin()
            _until_complete(node)
            finish()
            return Outcome(plan.manifest, node.source_bytes, node.store.written_bytes)


def take_over(folder: StagedFolder, source: str, claims: Claims) -> None:
    """Begins, or continues the last process's files if that one is surely over and does not write any more."""
    previous = claims[1]
    if previous and not previous.is_over:
        shutil.rmtree(LiveFolder(folder).path, ignore_errors=True)
    folder.begin(source)


def _until_complete(node: Node) -> None:
    """Returns once a node has all that it keeps; raises the first error of a file."""
    while not node.fill.settled.wait(_BEAT_SECONDS):
        node.beat()
    if node.fill.failure and not node.store.is_complete:
        raise node.fill.failure


def fetch_again(source: StagingSource, folder: StagedFolder, file: File, access: Access) -> None:
    """Fetches one file of a claimed copy from the source, and replaces the one that is there.

    Raises:
        DigestError, StorageError: as `complete`.
    """
    live = LiveFolder(folder)
    live.make()
    store = Store(live, [file], {0}, {0}, lambda _: access, lambda _: source.name_of(file))

    def fetch(number: int, begin: int, target: memoryview, *_: object) -> Origin:
        source.read_range(file, begin, target)
        return Origin.SOURCE

    fetching = Fill(store, fetch, lambda _: source.name_of(file), is_hurried=True)
    fetching.follow([0])
    fetching.start()
    try:
        fetching.settled.wait()
    finally:
        if fetching.stop():
            store.close()
        source.close()
    if fetching.failure and not store.is_complete:
        raise fetching.failure


@contextmanager
def residue_removed(folder: StagedFolder, mine: Claim) -> Iterator[None]:
    """Removes what a failed copy leaves.

    On a full disk the whole copy is removed, since others need the room, unless other nodes fill the same folder, or it
    was complete before and may be in use. After other errors only unfinished files are removed, and the next try goes
    on with the rest. An interrupt leaves everything, and so does a process that was taken for dead.
    """
    try:
        yield
    except Exception as error:
        full = isinstance(error, StorageError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full and not folder.share and not folder.has_manifest():
            folder.remove()
        elif is_in_force(folder.claims, mine):
            LiveFolder(folder).remove_unfinished()
        raise
