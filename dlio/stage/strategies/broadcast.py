"""Broadcast: each shard is read from the source by one node, and passed on from there to all others.

A node asks the owner of a shard for it, and reads those that it owns itself. If a node is lost, the next owner reads
its shards. A node that has all serves the others until they have all, too. Nodes that were there before, or hold the
data set already, need not read it again.

The nodes find each other by MPI where its launcher started the processes, else in a folder that they all see
(dlio/stage/meeting/folder.py).

Cost of S bytes on N nodes, with the rates of `Machine` and pieces of C bytes:
max(S / source, S / (N client), S (N-1) / (N network), S / local) + N C / network. The last term: each node begins with
a piece, which all nodes get.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dlio.cluster.topology import Topology
from dlio.locking.owner import node_id
from dlio.stage.copies.base_folder import check_names
from dlio.stage.engine.complete import complete
from dlio.stage.engine.fill import THREADS
from dlio.stage.job import Job, Outcome, whole_copy
from dlio.stage.meeting import mpi
from dlio.stage.meeting.folder import MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting, Place, numbered
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import Flows, Sizes, totals
from dlio.stage.planning.placement import BLOCK_BYTES, assign_first
from dlio.stage.planning.plan import Plan
from dlio.stage.strategies import Needs

NEEDS = Needs(exchange=True)
copy_name = whole_copy


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of reading each byte once and passing it on."""
    n, num_bytes = machine.num_nodes, volume.num_bytes
    reading = max(num_bytes / machine.source, num_bytes / (n * machine.client))
    passing = num_bytes * (n - 1) / (n * machine.network)
    seconds = max(reading, passing, num_bytes / machine.local) + n * BLOCK_BYTES / machine.network
    return Cost(n, num_bytes, num_bytes, seconds, "each byte is read once and passed on")


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each shard is read once."""
    owners = np.array(assign_first(sizes.shards.tolist(), num_nodes), np.int64)
    read, opens = (totals(owners, each, num_nodes) for each in (sizes.shards, sizes.num_files))
    all_bytes = np.full(num_nodes, read.sum())
    return Flows(read, opens, all_bytes - read, all_bytes, THREADS // 2, ring=num_nodes)


def carry_out(job: Job) -> Outcome:
    """Returns the whole data set on this node; every process of the job calls it.

    A node whose copy another job is filling waits for that job, and the others do not wait for this node.

    Raises:
        LauncherError: the launcher does not number the nodes, and they do not find each other.
        StorageError: as `complete`, or the nodes have no folder to meet in.
        DlioError: as `dlio.stage.engine.complete.complete`.
    """
    check_names(job.manifest)
    topology, place = _met(job)
    node, nodes = topology.node_rank or 0, topology.num_nodes or 1
    meeting = Meeting(place, node, nodes) if place else None
    return complete(replace(job, topology=topology), Plan(job.manifest, node, nodes), copy_name(job), meeting)


def _met(job: Job) -> tuple[Topology, Place | None]:
    """Returns the topology with all nodes numbered, and where the process meets the others that is to fill the copy."""
    topology, content = job.topology, job.manifest.content_id
    if everyone := mpi.processes(topology):
        return mpi.introduced(everyone, topology, content)
    if 1 in (topology.world_size, topology.num_nodes):
        return replace(topology, node_rank=0, num_nodes=1), None
    path = meeting_folder(content)
    if topology.node_rank is None or topology.num_nodes is None:
        machines = MeetingFolder(path, topology.rank).machines(topology.rank, topology.world_size, node_id())
        topology = numbered(topology, machines)
    if topology.num_nodes == 1 or topology.local_rank:
        return topology, None
    return topology, MeetingFolder(path, topology.node_rank or 0, topology.num_nodes or 0)
