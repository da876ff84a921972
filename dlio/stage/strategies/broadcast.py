"""Broadcast: each byte is read from the source by one node, and passed on from there to all others.

A node asks the home of a shard for it, and reads those that it owns itself. A shard that is large for the nodes is
divided: each node owns every Nth piece of C bytes. If a node is lost, the next homes read what it owns. A node that
has all serves the others until they have all, too. Nodes that were there before, or hold the data set already, need not
read it again.

The nodes find each other by MPI where its launcher started the processes, else in a folder that they all see
(dlio/stage/meeting/folder.py).

Cost of S bytes on N nodes, with the rates of `Machine` and pieces of C bytes:
max(S / source, S / (N client), S (N-1) / (N network), S / local) + N C / network, and for how long nodes wait for what
is not read yet (`idle_seconds`). The term with C: each node begins with a piece, which all nodes get.
"""

from __future__ import annotations

import numpy as np

from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import EXCHANGE_THREADS, Flows, Sizes, dealt, idle_seconds
from dlio.stage.planning.homes import PIECE_BYTES, largest_whole
from dlio.stage.planning.job import Job, whole_copy
from dlio.stage.planning.plan import Plan
from dlio.stage.strategies import Needs

NEEDS = Needs(exchange=True)
copy_name = whole_copy


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of reading each byte once and passing it on."""
    n, num_bytes = machine.num_nodes, volume.num_bytes
    reading = max(num_bytes / machine.source, num_bytes / n / machine.client)
    passing = num_bytes / n * (n - 1) / machine.network
    source, landing = min(machine.source, n * machine.client), min(machine.network, machine.local)
    is_divided = volume.largest_shard > largest_whole(num_bytes, n)
    passed = max(volume.num_files, num_bytes // PIECE_BYTES) if is_divided else volume.num_files
    idle = idle_seconds(num_bytes, passed, n, source, landing)
    seconds = max(reading, passing, num_bytes / machine.local) + n * PIECE_BYTES / machine.network + idle
    return Cost(n, num_bytes, num_bytes, seconds, "each byte is read once and passed on")


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each is read once."""
    read, opens, passed = dealt(sizes, num_nodes)
    all_bytes = np.full(num_nodes, read.sum())
    return Flows(read, opens, all_bytes - read, all_bytes, EXCHANGE_THREADS, exchange=num_nodes, passed=passed)


def plan(job: Job) -> Plan:
    """Returns the whole data set, of which this node reads its share from the source; the nodes have met."""
    return Plan(job.manifest).among(*job.topology.node_and_count or (0, 1))
