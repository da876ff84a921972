"""Replicate: every node fetches the whole data set from the source by itself.

The nodes begin at files spread evenly over the data set, so that a hundred nodes do not all ask the storage target that
holds the first shard.
"""

from __future__ import annotations

import zlib

from dlio.cluster.topology import Topology
from dlio.locking.owner import node_id
from dlio.stage.job import Job, Outcome, all_files
from dlio.stage.planning.placement import rotated
from dlio.stage.transfer.fetch import fetch


def carry_out(job: Job) -> Outcome:
    """Returns the whole data set on this node.

    Raises:
        DlioError: as `dlio.stage.transfer.fetch.fetch` says.
    """
    return fetch(job, job.manifest, job.manifest.content_id, rotated(all_files(job.manifest), _share(job.topology)))


def _share(topology: Topology) -> float:
    """Returns where this node begins: evenly spaced, or by its name where the launcher does not number the nodes."""
    if topology.node_rank is None or topology.num_nodes is None:
        return zlib.crc32(node_id().encode()) / 2**32
    return topology.node_rank / topology.num_nodes
