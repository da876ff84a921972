"""Replicate: every node fetches the whole data set from the source by itself.

The nodes begin at files spread evenly over the data set. So a hundred nodes do not all ask the storage target that
holds the first shard.

Cost of S bytes on N nodes, with the rates of `Machine`: max(N S / source, S / client, S / local).
"""

from __future__ import annotations

import zlib

import numpy as np

from dlio.locking.owner import node_id
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import THREADS, Flows, Sizes, flows_alone
from dlio.stage.planning.job import Job, whole_copy
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
    node, nodes = job.topology.node_and_count or (zlib.crc32(node_id().encode()), 1 << 32)  # by its name
    return Plan(job.manifest, begin=node / nodes)
