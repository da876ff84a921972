"""Replicate: every node fetches the whole data set from the source by itself.

The nodes begin at files spread evenly over the data set. So a hundred nodes do not all ask the storage target that
holds the first shard.

Cost of S bytes on N nodes, with the rates of `Machine`: max(N S / source, S / client, S / local).
"""

from __future__ import annotations

import zlib

import numpy as np

from dlio.cluster.topology import Topology
from dlio.locking.owner import node_id
from dlio.stage.job import Job, whole_copy
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import THREADS, Flows, Sizes, flows_alone
from dlio.stage.planning.plan import Plan
from dlio.stage.strategies import Needs

NEEDS = Needs()
copy_name = whole_copy


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of every node reading the whole data set."""
    n, num_bytes = machine.num_nodes, volume.num_bytes
    seconds = max(n * num_bytes / machine.source, num_bytes / machine.client, num_bytes / machine.local)
    return Cost(n, num_bytes, n * num_bytes, seconds, "each node reads all")


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each reads all."""
    read, opens = float(sizes.files.sum()), float(np.count_nonzero(sizes.files))
    return flows_alone(np.full(num_nodes, read), np.full(num_nodes, opens), THREADS)


def plan(job: Job) -> Plan:
    """Returns the whole data set, from where this node begins."""
    return Plan(job.manifest, begin=_share(job.topology))


def _share(topology: Topology) -> float:
    """Returns where this node begins: evenly spaced, or by its name if the launcher does not number the nodes."""
    if topology.node_rank is None or topology.num_nodes is None:
        return zlib.crc32(node_id().encode()) / 2**32
    return topology.node_rank / topology.num_nodes
