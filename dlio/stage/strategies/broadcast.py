"""Broadcast: each shard is read from the source by one node, and passed on from there to all others.

A node asks the owner of a shard for it, and reads those that it owns itself. If a node is lost, the next owner reads
its shards. A node that has all serves the others until they have all, too. Nodes that were there before, or hold the
data set already, need not read it again.

The nodes find each other by MPI where its launcher started the processes, else in a folder that they all see
(dlio/stage/meeting/folder.py).

Cost of S bytes on N nodes, with the rates of `Machine`, pieces of C bytes, and a node that reads R = max(S / N, largest
shard): max(S / source, R / client, R (N-1) / network, S / local) + N C / network. A shard is not divided: its node
sends it to all others. The last term: each node begins with a piece, which all nodes get.
"""

from __future__ import annotations

import numpy as np

from dlio.stage.job import Job, whole_copy
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import THREADS, Flows, Sizes, idle_seconds, totals
from dlio.stage.planning.plan import BLOCK_BYTES, Plan, assign_first
from dlio.stage.strategies import Needs

NEEDS = Needs(exchange=True)
copy_name = whole_copy


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of reading each byte once and passing it on."""
    n, num_bytes = machine.num_nodes, volume.num_bytes
    most = max(num_bytes / n, volume.largest_shard)  # read by one node
    reading = max(num_bytes / machine.source, most / machine.client)
    passing = most * (n - 1) / machine.network
    source, landing = min(machine.source, n * machine.client), min(machine.network, machine.local)
    idle = idle_seconds(num_bytes, volume.num_files, n, source, landing)
    seconds = max(reading, passing, num_bytes / machine.local) + n * BLOCK_BYTES / machine.network + idle
    return Cost(n, num_bytes, num_bytes, seconds, "each byte is read once and passed on")


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each shard is read once."""
    owners = np.array(assign_first(sizes.shards.tolist(), num_nodes), np.int64)
    read, opens = (totals(owners, each, num_nodes) for each in (sizes.shards, sizes.num_files))
    all_bytes = np.full(num_nodes, read.sum())
    return Flows(read, opens, all_bytes - read, all_bytes, THREADS // 2, exchange=num_nodes)


def plan(job: Job) -> Plan:
    """Returns the whole data set, of which this node reads its share from the source; the nodes have met."""
    return Plan(job.manifest).among(*job.topology.node_and_count or (0, 1))
