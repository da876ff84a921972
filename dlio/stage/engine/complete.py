"""Completing a copy: one process of a node fills and serves it, the others wait for it, or all nodes fill it together.

The process that fills is a `dlio stage` (foreground.py) or an agent (background.py). If it dies, another one
continues with its unfinished files.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dlio.cluster.liveness import Heartbeats
from dlio.dataset.manifest import File
from dlio.dataset.shard import files_of
from dlio.errors import DlioError, StorageError
from dlio.io import limits, world
from dlio.io.files import FULL, sync_folder
from dlio.locking.claim import claimed
from dlio.locking.claim_file import Claim, is_in_force
from dlio.stage.client.client import Client
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import check_names
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import check_safe, in_folder_for_us
from dlio.stage.copies.node_cache import await_leader, give_way, is_being_filled, remove_own
from dlio.stage.engine.foreground import Foreground
from dlio.stage.engine.node import Node, within_room
from dlio.stage.engine.writing import Create
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.planning.job import Job, Listeners, Outcome
from dlio.stage.planning.plan import Plan
from dlio.stage.strategies import LayingOut, Strategy

if TYPE_CHECKING:
    from dlio.stage.engine.background import Background  # which a `dlio stage` does not load

# Without a new byte, and once all are here: then a process that waits gets an error.
_STUCK_SECONDS, _PUBLISHING_SECONDS = 20.0, 600.0
_LOOK_SECONDS = 0.2

_log = logging.getLogger(__name__)

Claims = tuple[Claim, Claim | None]  #: this process's claim, and the one before it


def complete(job: Job, strategy: Strategy, meeting: Meeting | None = None) -> Outcome:
    """Returns the staged data set, once this node's copy holds what its plan wants.

    Args:
        job: the source and the destination.
        strategy: gives the plan.
        meeting: the other nodes, if the plan has others; None in a process that is not to meet them. It is left.

    Raises:
        UsageError: the job lacks what the strategy needs.
        ManifestError: a file has a reserved name.
        DigestError: a source file is damaged.
        StorageError: no room, no permission, an input/output error, or the process that filled the copy failed; a
            layout was refused.
    """
    try:
        if strategy.NEEDS.shared:
            wanted, work = files_of(job.manifest.shards), partial(_complete_together, job, strategy)
        else:
            plan = strategy.plan(job)
            wanted, work = plan.wanted, partial(_complete, job, plan, meeting)
        found = in_folder_for_us(job.dest, strategy.copy_name(job), wanted, work)
    except BaseException as error:
        if meeting:
            problem = error.text if isinstance(error, DlioError) else str(error)
            meeting.leave(meeting.word(lacks=1, why=problem))
        raise
    sync_folder(found.manifest.root)  # who has published the manifest may have been killed before it did this
    return found


def _complete(job: Job, plan: Plan, meeting: Meeting | None, folder: StagedFolder) -> Outcome:
    """Returns as `complete`; raises TakenError if another user has taken the folder."""
    wanted, staged = plan.wanted, replace(plan.manifest, root=folder.path)
    lease.take(folder)
    if folder.holds(wanted):
        if (live := LiveFolder(folder)).path.exists() and not is_being_filled(folder):
            live.remove_unfinished()  # of a process that was killed at its end
        folder.touch()
        check_safe(folder)
        if job.options.mode is not None:
            folder.give([file.name for file in wanted], job.access(None))
        if meeting:
            _serve_complete(job, plan, folder, meeting)
        return Outcome(staged)
    check_names(plan.manifest)  # which was done before, if the copy is complete
    following = Following(folder, wanted, job.listeners)
    await_leader(job.topology, lambda: is_being_filled(folder) or following.is_done())

    def is_done() -> bool:
        nonlocal plan, meeting
        if meeting and _is_filled_apart(folder, plan, meeting):
            why = f"another process fills {folder.path}, and does not meet these nodes"
            meeting.leave(meeting.word(lacks=1, why=why))  # the others do not expect this node any more
            plan, meeting = Plan(plan.manifest), None
        return following.is_done()

    with closing(following), claimed(folder.claims, is_done, give_way=give_way(folder)) as claims:
        if claims is None:
            check_safe(folder)
            return Outcome(staged, has_waited=True)
        with residue_removed(folder, claims[0]):
            filled = carry_out(job, plan, folder, claims, Foreground(job), meeting=meeting)
    return replace(filled, manifest=staged)


def _complete_together(job: Job, strategy: Strategy, whole: StagedFolder) -> Outcome:
    """Returns as `complete`, of a copy that all nodes see: they fill it together, each its share first.

    Then a node goes through the other shares. It waits for a share whose node works, and copies a share whose node died
    or never came. So the copy is complete when the first node returns, whichever node is lost.
    """
    wanted, staged = files_of(job.manifest.shards), replace(job.manifest, root=whole.path)
    if whole.holds(wanted):
        check_safe(whole)
        return Outcome(staged)
    check_names(job.manifest)
    laid_out = strategy.layouts(job) if isinstance(strategy, LayingOut) else {}
    create = (lambda path, file: laid_out[file.name].create(path)) if laid_out else None
    node, nodes = job.topology.node_and_count or (0, 1)
    done = []
    for share in ((node + step) % nodes for step in range(nodes)):
        plan = strategy.plan(replace(job, topology=replace(job.topology, node_rank=share, num_nodes=nodes)))
        done.append(_copy_share(job, replace(whole, share=f"{share}of{nodes}"), plan, create))
    for name, layout in laid_out.items():
        layout.check(whole.path / name)
    with claimed(whole.claims / "manifest", whole.is_published) as claim:
        if claim is not None:
            for share in range(nodes):
                LiveFolder(replace(whole, share=f"{share}of{nodes}")).remove_unfinished()  # of killed nodes
            whole.finish(job.manifest, [file.name for file in wanted], job.access(None))
    check_safe(whole)
    return Outcome(staged, sum(each.source_bytes for each in done), sum(each.copied_bytes for each in done))


def _copy_share(job: Job, folder: StagedFolder, plan: Plan, create: Create | None) -> Outcome:
    """Copies one share, or waits for the node that copies it."""
    with claimed(folder.claims, lambda: not folder.missing(plan.wanted)) as claims:
        if claims is None:
            return Outcome(job.manifest)
        with residue_removed(folder, claims[0]):
            return carry_out(job, plan, folder, claims, Foreground(job), create=create)


def _is_filled_apart(folder: StagedFolder, plan: Plan, meeting: Meeting) -> bool:
    """Returns whether a process that does not meet these nodes fills this node's copy."""
    agent = LiveFolder(folder).agent()
    joins = agent and meeting.is_joined_by_others and (agent.node, agent.nodes) == (plan.node, plan.num_nodes)
    return agent is not None and not joins


def _serve_complete(job: Job, plan: Plan, folder: StagedFolder, meeting: Meeting) -> None:
    """Serves a copy that is complete to the other nodes until they are, if no other process does."""
    try:
        with claimed(folder.claims, lambda: False, patient=False) as claims:
            if claims:
                carry_out(job, plan, folder, claims, Foreground(job), meeting=meeting)
                return
    except StorageError as error:  # as in a copy of root's
        _log.info("the copy is not served to other nodes: %s", error)
    meeting.leave(meeting.word())


class Following:
    """Looks now and then how far another process is with the files that a copy is to hold; for one thread."""

    def __init__(self, folder: StagedFolder, wanted: Sequence[File], listeners: Listeners) -> None:
        self._folder, self._wanted, self._listeners = folder, wanted, listeners
        self._client: Client | None = None
        self._looked, self._done, self._here = world.monotonic(), -1, -1  # none may be there to wait for
        self._heartbeats = Heartbeats()

    def is_done(self) -> bool:
        """Returns whether the copy is complete, after reporting how far it is.

        Raises StorageError if the process that fills it does not get on, or does not keep all of it: says why.
        """
        if self._folder.holds(self._wanted):
            return True
        if world.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = world.monotonic()
            self._look()
        return False

    def close(self) -> None:
        """Closes the connection."""
        if self._client:
            self._client.close()

    def _look(self) -> None:
        self._client = self._client or Client(self._folder)
        try:
            found = self._client.stat()
        except StorageError as error:  # it has ended, or will answer later
            self._check_unheard(error)
            return
        staged, total = (found["nodes"][0][name] for name in ("staged_bytes", "total_bytes"))
        if self._done < 0 and self._listeners.expect:
            self._listeners.expect(total - staged)
        elif 0 <= self._done < staged and self._listeners.report:
            self._listeners.report(staged - self._done)
        self._done = staged
        idle = self._heartbeats.note(self._folder, staged)
        self._check(found, min(idle, found["nodes"][0]["idle_seconds"]))  # less while it verifies what has come

    def _check_unheard(self, error: StorageError) -> None:
        """Raises StorageError if the process is of another version, or has not got on though it cannot be asked."""
        live = LiveFolder(self._folder)
        live.agent()  # raises the error if it is of another version
        known = max(self._done, self._here)
        if (idle := self._heartbeats.note(self._folder, known)) > _PUBLISHING_SECONDS:
            self._here = live.present_bytes(self._wanted)
            if self._here <= known:
                raise StorageError(f"nothing has come for {idle:.0f} s, and {error.text}")

    def _check(self, found: dict[str, Any], idle: float) -> None:
        node = found["nodes"][0]
        if not found["keeps_all"]:
            kept = f"{self._folder.path} is a cache of {node['total_bytes']:,} bytes, less than the data set"
            raise StorageError(f"{kept}: read it while its agent runs, or free space and end it with dlio clean")
        is_publishing = node["staged_bytes"] == node["total_bytes"] and not node["waiting_for"]
        if idle > (_PUBLISHING_SECONDS if is_publishing else _STUCK_SECONDS):
            why = node["waiting_for"] or "nothing has come"
            log = LiveFolder(self._folder).log
            raise StorageError(f"{node['host']} has staged nothing for {idle:.0f} s: {why}; see {log}")


def carry_out(
    job: Job,
    plan: Plan,
    folder: StagedFolder,
    claims: Claims,
    filler: Foreground | Background,
    *,
    create: Create | None = None,
    meeting: Meeting | None = None,
) -> Outcome:
    """Returns what was done to complete a claimed copy, or a share of one, and to serve it as long as it is needed.

    Args:
        job, plan, folder, claims, filler: what is copied, where to, and by which process.
        create: makes an unfinished file; None for a plain file.
        meeting: the other nodes; None to meet them in a folder, if the plan has others.

    Raises:
        DigestError, StorageError: as `complete`.
    """
    is_complete = folder.holds(plan.wanted)
    if not is_complete:
        begin_copy(folder, str(job.source), claims)
    plan = within_room(filler.fitted(plan, folder), folder, claims[0], job.holder)
    if meeting:
        limits.allow_open_files()
    node = Node(job, plan, folder, create, is_hurried=filler.is_hurried, meeting=meeting)
    try:
        node.begin(claims[0])
        filler.begin(node)
        if not is_complete:
            filler.until_complete(node)
            node.publish()
        filler.until_unneeded(node)
        return Outcome(plan.manifest, node.fetching.source_bytes, node.store.written_bytes)
    finally:
        filler.close(node)


def begin_copy(folder: StagedFolder, source: str, claims: Claims) -> None:
    """Begins, or continues the last process's files if that one is surely over and does not write any more."""
    previous = claims[1]
    if previous and not previous.is_over:
        shutil.rmtree(LiveFolder(folder).path, ignore_errors=True)
    folder.begin(source)


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
        full = isinstance(error, StorageError) and error.errno in FULL
        if is_in_force(folder.claims, mine):
            if full and not folder.share and not folder.has_manifest():
                remove_own(folder)
            else:
                LiveFolder(folder).remove_unfinished()
        raise
