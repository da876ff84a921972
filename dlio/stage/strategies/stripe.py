"""Stripe: the nodes together copy the data set into a folder of the shared file system, striped for fast reading.

Each node copies its share, and then what other nodes have left of theirs (dlio/stage/engine/complete.py).

Cost of S bytes on N nodes, with the rates of `Machine`: 2 max(S / source, S / (N client)), since the data set is read
from and written to the shared file system; more if the files leave some of its storage targets unused.

On Lustre each file gets a layout (dlio/io/lustre.py).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.io import lustre
from dlio.io.filesystems import filesystem_of
from dlio.io.lustre import Layout, stripe_count
from dlio.io.sizes import counted
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.planning.flows import Flows, Sizes
from dlio.stage.planning.job import Job, whole_copy
from dlio.stage.planning.plan import Plan, partitioned
from dlio.stage.strategies import Needs, partition

NEEDS = Needs(shared=True)
copy_name = whole_copy
_log = logging.getLogger(__name__)


def cost(volume: Volume, machine: Machine, copies: int) -> Cost:
    """Returns the cost of copying within the shared file system, all nodes together."""
    num_bytes, num_files, most = volume.num_bytes, max(1, volume.num_files), machine.num_targets
    nodes = machine.num_nodes * machine.client
    read = num_bytes / min(machine.source, nodes)
    if not most:
        return Cost(1, 0, num_bytes, 2 * read, "the nodes together copy it into a shared folder")
    count = stripe_count(num_bytes // num_files, volume.num_files, most)
    used = min(most, num_files * count)
    written = num_bytes / min(machine.source * used / most, nodes)
    why = f"{counted(volume.num_files, 'file')} over {count} of {most} targets use {used} of them"
    return Cost(1, 0, num_bytes, read + written, why)


def flows(sizes: Sizes, num_nodes: int, copies: int) -> Flows:
    """Returns the bytes that the nodes move; each copies its share within the shared file system."""
    return replace(partition.flows(sizes, num_nodes, 1), returns=True)


def plan(job: Job) -> Plan:
    """Returns this node's share."""
    node, nodes = job.topology.node_and_count or (0, 1)
    return Plan(replace(partitioned(job.manifest, nodes), node=node))


def layouts(job: Job) -> dict[str, Layout]:
    """Returns the layout of each file, by name; empty if the files are not laid out one by one.

    Raises:
        StorageError: stripes were asked for on a file system without them, or the targets cannot be listed.
    """
    options, files = job.options, files_of(job.manifest.shards)
    asked = options.stripe_count or options.stripe_size or options.pool or options.ost_per_rank
    if not lustre.is_lustre(job.dest):
        system = filesystem_of(job.dest)
        if asked:
            raise StorageError(
                f"{job.dest} lies on {system}, where stripes cannot be set: leave out the stripe options"
            )
        _log.info("%s lies on %s, which has no stripes to choose: a plain copy", job.dest, system)
        return {}
    if lustre.has_site_layout(job.dest) and not asked:
        _log.info("%s has a progressive layout of its site: files are left to it", job.dest)
        return {}
    numbers = lustre.targets(job.dest)
    return {
        file.name: Layout(
            1
            if options.ost_per_rank
            else options.stripe_count or stripe_count(file.num_bytes, len(files), len(numbers)),
            options.stripe_size or lustre.STRIPE_BYTES,
            numbers[number % len(numbers)] if options.ost_per_rank else None,
            options.pool,
        )
        for number, file in enumerate(files)
    }
