"""Partition: each shard goes to `copies` of the nodes, balanced by bytes; together they hold the whole data set.

The staged manifest holds the nodes of each shard, the same on every node, and the rank of this node. So the loaders
give every rank the shards of its own node. A part is not the whole, so it lies in its own folder,
`<content id>.<node>of<nodes>x<copies>`.

Cost of S bytes in r copies on N nodes, with the rates of `Machine`:
max(r S / source, r S / (N client), r S / (N local)).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dlio.cluster.topology import Topology
from dlio.errors import UsageError
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import THREADS, Flows, Sizes, flows_alone, totals
from dlio.stage.planning.homes import assign_first, check_copies
from dlio.stage.planning.job import Job
from dlio.stage.planning.plan import Plan, partitioned
from dlio.stage.strategies import Needs

NEEDS = Needs(parts=True)


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of each shard going to `copies` of the nodes.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    check_copies(copies, machine.num_nodes)
    n, total = machine.num_nodes, copies * volume.num_bytes
    most = max(-(-total // n), volume.largest_shard)  # a node's part is of whole shards
    seconds = max(total / machine.source, most / machine.client, most / machine.local)
    return Cost(copies, most, total, seconds, "each node reads its part")


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each reads the shards that it holds.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    check_copies(copies, num_nodes)
    first = np.array(assign_first(sizes.shards.tolist(), num_nodes), np.int64)
    read, opens = totals(first, sizes.shards, num_nodes), totals(first, sizes.num_files, num_nodes)
    held = np.array([np.sum([np.roll(each, step) for step in range(copies)], axis=0) for each in (read, opens)])
    return flows_alone(held[0], held[1], THREADS)


def copy_name(job: Job) -> str:
    """Returns the name of this node's part.

    Raises:
        UsageError: the launcher does not number the nodes, or there are fewer nodes than copies.
    """
    (node, nodes), copies = _numbers(job.topology), job.options.copies
    check_copies(copies, nodes)
    return f"{job.manifest.content_id}.{node}of{nodes}x{copies}"


def plan(job: Job) -> Plan:
    """Returns this node's part; raises UsageError as `copy_name`."""
    node, nodes = _numbers(job.topology)
    return Plan(replace(partitioned(job.manifest, nodes, job.options.copies), node=node))


def _numbers(topology: Topology) -> tuple[int, int]:
    """Returns this node's rank and the number of nodes."""
    if topology.node_and_count is None:
        raise UsageError(
            f"the strategy partition needs the nodes' numbers, which the launcher {topology.launcher} does not give: "
            "start one process per node with srun, or give the topology"
        )
    return topology.node_and_count
