"""Broadcast: each byte is read from the source by one node, and passed on to all others around a ring.

    node 0 reads files a d ...      round t: every node reads block t of its own files,
    node 1 reads files b e ...               then N - 1 times writes the block it has and passes it on.
    node 2 reads files c f ...               After the round every node has N more blocks.

The files of one node are one stream, cut into blocks of equal size. Every node knows the plan, so blocks need no
address. Reading, passing and writing overlap. Blocks of a file arrive in order, so it is digested as it arrives.

Cost of S bytes on N nodes, with the rates of `Machine` and blocks of C bytes:
max(S / source, S / (N client), S (N-1) / (N network), S / local) + N C / network. The last term fills the pipeline.
"""

from __future__ import annotations

import operator
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, replace
from functools import reduce
from itertools import chain

import numpy as np

from dlio.dataset.manifest import File
from dlio.errors import EXIT_INTERRUPTED, DlioError, StorageError
from dlio.locking.claim import claimed
from dlio.locking.claim_file import Claim
from dlio.locking.owner import node_id
from dlio.stage.cache import lease
from dlio.stage.cache.access import Access
from dlio.stage.cache.base_folder import check_names
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.cache.node_cache import make_room
from dlio.stage.cache.ownership import choosing_again, folder_for_us, open_for_us
from dlio.stage.comm.base import LostError, Ring
from dlio.stage.comm.connect import world
from dlio.stage.job import Job, NodeProgress, Outcome, all_files, whole_copy
from dlio.stage.live.agent.complete import complete, residue_removed, take_over
from dlio.stage.live.folder import FILES, LiveFolder
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import Flows, Sizes, totals
from dlio.stage.planning.live import Plan
from dlio.stage.planning.placement import BLOCK_BYTES, assign, assign_first
from dlio.stage.strategies import Needs
from dlio.stage.transfer.broadcast_pipeline import READERS, BroadcastPipeline
from dlio.stage.transfer.copy import Tally
from dlio.stage.transfer.stream import Lacking

NEEDS = Needs(exchange=True)
copy_name = whole_copy
_LOST = "lost in the middle of the broadcast"


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of reading each byte once and passing it on."""
    n, num_bytes = machine.num_nodes, volume.num_bytes
    reading = max(num_bytes / machine.source, num_bytes / (n * machine.client))
    passing = num_bytes * (n - 1) / (n * machine.network)
    seconds = max(reading, passing, num_bytes / machine.local) + n * BLOCK_BYTES / machine.network
    return Cost(n, num_bytes, num_bytes, seconds, "each byte is read once and passed on")


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each file is read once, and received in full blocks."""
    owners = np.array(assign_first(sizes.files.tolist(), num_nodes), np.int64)
    opened = (sizes.files > 0).astype(np.int64)  # an empty file has no block to read
    read, opens = (totals(owners, each, num_nodes) for each in (sizes.files, opened))
    received = (num_nodes - 1) * np.ceil(read.max() / BLOCK_BYTES) * BLOCK_BYTES
    all_nodes = np.ones(num_nodes)
    return Flows(read, opens, received * all_nodes, read.sum() * all_nodes, READERS, ring=num_nodes)


def carry_out(job: Job) -> Outcome:
    """Returns the whole data set on this node; every process of the job calls it.

    A node whose copy another job is filling still passes blocks on, and waits for that job afterwards.

    Raises:
        LauncherError: the processes that the launcher started do not find each other.
        StorageError: a node failed; all nodes name the same node.
        DlioError: as `dlio.stage.live.agent.complete.complete`.
    """
    check_names(job.manifest)
    tally = Tally(job.listeners.report)
    with world(job.topology) as everyone:
        _exchange(job, everyone, tally)
    try:
        rest = complete(job, Plan(job.manifest), copy_name(job))
    except StorageError as error:
        if _LOST in str(error):  # as this node's leader reports
            everyone.leave()
        raise
    return Outcome(rest.manifest, rest.source_bytes + tally.read, rest.copied_bytes + tally.written)


def _exchange(job: Job, everyone: Ring, tally: Tally) -> None:
    """Brings the data set to all nodes that lack it; one process of each node takes part; raises StorageError."""
    nodes = everyone.gather(node_id())
    leaders = sorted({node: rank for rank, node in reversed(list(enumerate(nodes)))}.values())
    folder = StagedFolder(job.dest, copy_name(job))
    with ExitStack() as stack:
        ready, problem = Lacking(folder), ""
        if everyone.rank in leaders:
            ready, problem = _prepare(stack, job, folder)
        with _naming_lost([node.partition("/")[0] for node in nodes]):
            _raise_first(everyone.gather(problem), nodes)
            ring = everyone.among(leaders)
        if ring is not None:
            with _naming_lost([nodes[rank].partition("/")[0] for rank in leaders]):
                _take_part(job, ring, ready, tally)
            if ready.aside is not None:
                ready.folder.finish(job.manifest, [file.name for file in all_files(job.manifest)], job.access(None))


@contextmanager
def _naming_lost(hosts: Sequence[str]) -> Iterator[None]:
    """Names the hosts of lost processes; `hosts` are those of the ring's ranks."""
    try:
        yield
    except LostError as error:
        names = ", ".join(hosts[rank] for rank in error.ranks) or "unknown"
        raise StorageError(f"{_LOST}: {names} ({error}). Stage again to go on") from error


def _prepare(stack: ExitStack, job: Job, folder: StagedFolder) -> tuple[Lacking, str]:
    """Returns what this node lacks, claimed for this process, and why that failed, so that others do not wait."""
    files = all_files(job.manifest)

    def claim_one() -> tuple[StagedFolder, tuple[Claim, Claim | None] | None]:
        found = folder_for_us(job.dest, folder.copy, files)
        open_for_us(found)
        lease.take(found)
        return found, stack.enter_context(claimed(found.claims, lambda: found.holds(files), patient=False))

    try:
        folder, claim = choosing_again(claim_one)
        if claim is None:
            return Lacking(folder), ""
        stack.enter_context(residue_removed(folder, claim[0]))
        take_over(folder, str(job.source), claim)
        live = LiveFolder(folder)
        live.make()
        stack.callback(live.remove_unfinished)
        missing = folder.missing(files)
        make_room(folder, sum(file.num_bytes for file in missing), len(missing))
        return Lacking(folder, frozenset(missing), live.path / FILES), ""
    except DlioError as error:
        return Lacking(folder), f"{socket.gethostname()}: {error}"


def _take_part(job: Job, ring: Ring, ready: Lacking, tally: Tally) -> None:
    """Reads, passes on and writes until every node has what it lacked; raises LostError, StorageError."""
    lacking = sum(file.num_bytes for file in ready.missing)
    hosts, totals = zip(*ring.gather((socket.gethostname(), lacking)), strict=True)
    lacked = _union(all_files(job.manifest), ready.missing, ring)
    owners = assign([file.num_bytes for file in lacked], ring.size)
    streams: list[list[File]] = [[] for _ in range(ring.size)]
    for file, (owner,) in zip(lacked, owners, strict=True):
        streams[owner].append(file)

    def watch(lefts: Sequence[int]) -> None:
        if job.listeners.watch:
            job.listeners.watch([NodeProgress(*node) for node in zip(hosts, totals, lefts, strict=True)])

    lacking_here = replace(ready, access=_access(job, ring, streams, hosts))
    pipeline = BroadcastPipeline(job.source, ring, streams, lacking_here, tally, watch)
    watch(totals)
    try:
        pipeline.run()
    except KeyboardInterrupt:
        ring.leave(EXIT_INTERRUPTED)
        raise
    finally:
        pipeline.close()
    problems = ring.gather(str(pipeline.problem or ""))
    if pipeline.problem:
        raise pipeline.problem
    _raise_first(problems, hosts)


def _access(job: Job, ring: Ring, streams: list[list[File]], hosts: Sequence[str]) -> dict[str, Access]:
    """Returns who may read each file; each node looks at the files that it reads, so each file is looked at once.

    Raises:
        LostError: a node is lost.
        StorageError: a node failed; all nodes name it.
    """
    mine, problem = [], ""
    try:
        mine = [astuple(job.access(file)) for file in streams[ring.rank]]
    except StorageError as error:
        problem = str(error)
    problems, found = zip(*ring.gather((problem, mine)), strict=True)
    _raise_first(problems, hosts)
    pairs = zip(chain.from_iterable(streams), chain.from_iterable(found), strict=True)
    return {file.name: Access(*access) for file, access in pairs}


def _union(files: list[File], missing: Iterable[File], ring: Ring) -> list[File]:
    """Returns the files that any node lacks, in the manifest's order."""
    wanted = set(missing)
    mine = "0" + "".join("1" if file in wanted else "0" for file in files)
    lacked = reduce(operator.or_, (int(bits, 16) for bits in ring.gather(f"{int(mine, 2):x}")))
    return [file for file, flag in zip(files, f"{lacked:0{len(files)}b}", strict=False) if flag == "1"]


def _raise_first(problems: Sequence[str], nodes: Sequence[str]) -> None:
    for node, problem in zip(nodes, problems, strict=True):
        if problem:
            raise StorageError(f"staging failed on {node.partition('/')[0]}: {problem}")
