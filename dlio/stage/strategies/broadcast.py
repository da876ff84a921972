"""Broadcast: each byte is read from the source by one node, and passed on to all others around a ring.

    node 0 reads files a d ...      round t: every node reads block t of its own files,
    node 1 reads files b e ...               then N - 1 times passes on what it got last
    node 2 reads files c f ...               and writes it: after the round all have N more blocks

The files of one node are one stream, cut into blocks of equal size; as every node knows the plan, blocks need no
address. Reading, passing and writing overlap: a thread reads ahead, two write and digest, and memory is bounded by a
pool of blocks. Blocks of a file arrive in order, so it is digested as it arrives.
"""

from __future__ import annotations

import operator
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, replace
from functools import reduce
from typing import Any

from dlio.claim import claimed
from dlio.errors import EXIT_INTERRUPTED, DlioError, StorageError
from dlio.files import storage_errors
from dlio.manifest import File
from dlio.owner import node_id
from dlio.stage import lease
from dlio.stage.access import Access
from dlio.stage.cache import make_room
from dlio.stage.copy import Tally
from dlio.stage.fetch import fetch, residue_removed
from dlio.stage.folder import StagedFolder, check_names
from dlio.stage.ground import open_up
from dlio.stage.job import Job, NodeProgress, Outcome, all_files
from dlio.stage.passing import Passing
from dlio.stage.plan import place
from dlio.stage.ring import LostError, Ring, world
from dlio.stage.stream import Place
from dlio.stage.trust import folder_for_us

_LOST = "lost in the middle of the broadcast"


def carry_out(job: Job) -> Outcome:
    """Returns the whole data set on this node; every process of the job calls it.

    A node whose copy another job is filling takes part in passing on, and waits for that job afterwards.

    Raises:
        LauncherError: the processes that the launcher started do not find each other.
        StorageError: a node failed, and which; the same on all nodes.
        DlioError: as `dlio.stage.fetch.fetch` says.
    """
    check_names(job.manifest)
    tally = Tally(job.report)
    with world(job.topology) as everyone:
        _exchange(job, everyone, tally)
    try:
        rest = fetch(job, job.manifest, job.manifest.content_id, all_files(job.manifest))
    except StorageError as error:
        if _LOST in str(error):  # as the leader of this node says
            everyone.leave()
        raise
    return Outcome(rest.manifest, rest.source_bytes + tally.read, rest.copied_bytes + tally.written)


def _exchange(job: Job, everyone: Ring, tally: Tally) -> None:
    """Brings the data set to all nodes that lack it, by one process of each.

    Raises:
        StorageError: a node failed or is lost; named on all nodes.
    """
    nodes = everyone.gather(node_id())
    leaders = sorted({node: rank for rank, node in reversed(list(enumerate(nodes)))}.values())
    folder = StagedFolder(job.dest, job.manifest.content_id)
    with ExitStack() as stack:
        ready, problem = Place(folder, frozenset(), None), ""
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
    """Says on which hosts, by place in the ring, lost processes were."""
    try:
        yield
    except LostError as error:
        names = ", ".join(hosts[rank] for rank in error.ranks) or "unknown"
        raise StorageError(f"{_LOST}: {names} ({error}). Stage again to go on") from error


def _prepare(stack: ExitStack, job: Job, folder: StagedFolder) -> tuple[Place, str]:
    """Returns what this node lacks, claimed for this process, and why that failed: others must not wait for it."""
    files = all_files(job.manifest)
    try:
        folder = folder_for_us(job.dest, folder.copy, files)
        open_up(folder.dest)
        lease.take(folder)
        claim = stack.enter_context(claimed(folder.claims, lambda: folder.holds(files), patient=False))
        if claim is None:
            return Place(folder, frozenset(), None), ""
        stack.enter_context(residue_removed(folder, claim[0]))
        aside = folder.begin(str(job.source), *claim)
        with storage_errors("look at", folder.path):
            missing = [file for file in files if not folder.has(file)]
        make_room(folder, sum(file.num_bytes for file in missing), len(missing))
        return Place(folder, frozenset(missing), aside), ""
    except DlioError as error:
        return Place(folder, frozenset(), None), f"{socket.gethostname()}: {error}"


def _take_part(job: Job, ring: Ring, ready: Place, tally: Tally) -> None:
    """Reads, passes on and writes until every node has what it lacked.

    Raises:
        LostError: a node is lost.
        StorageError: a node failed; named on all nodes.
    """
    lacking = sum(file.num_bytes for file in ready.missing)
    hosts, totals = zip(*ring.gather((socket.gethostname(), lacking)), strict=True)
    lacked = _union(all_files(job.manifest), ready.missing, ring)
    owners = place([file.num_bytes for file in lacked], ring.size)
    streams: list[list[File]] = [[] for _ in range(ring.size)]
    for file, (owner,) in zip(lacked, owners, strict=True):
        streams[owner].append(file)

    def watch(lefts: Sequence[int]) -> None:
        if job.watch:
            job.watch([NodeProgress(*node) for node in zip(hosts, totals, lefts, strict=True)])

    passing = Passing(job.source, ring, streams, replace(ready, access=_access(job, ring, streams)), tally, watch)
    watch(totals)
    try:
        passing.run()
    except KeyboardInterrupt:
        ring.leave(EXIT_INTERRUPTED)
        raise
    finally:
        passing.close()
    problems = ring.gather(str(passing.problem or ""))
    if passing.problem:
        raise passing.problem
    _raise_first(problems, hosts)


def _access(job: Job, ring: Ring, streams: list[list[File]]) -> dict[str, Access]:
    """Returns who may read each file: each node looks at those that it reads, so each is looked at once.

    Raises:
        LostError: a node is lost.
        StorageError: a node failed; named on all nodes.
    """
    try:
        told: list[Any] = [astuple(job.access(file)) for file in streams[ring.rank]]
    except StorageError as error:
        told = [f"{socket.gethostname()}: {error}"]
    found: dict[str, Access] = {}
    for stream, accesses in zip(streams, ring.gather(told), strict=True):
        if accesses and isinstance(accesses[0], str):
            raise StorageError(f"staging failed on {accesses[0]}")
        found |= {file.name: Access(*access) for file, access in zip(stream, accesses, strict=True)}
    return found


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
