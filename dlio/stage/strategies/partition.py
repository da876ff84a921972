"""Partition: each shard on `copies` of the nodes, balanced by bytes; together the nodes hold the whole data set.

The staged manifest says where each shard lies, the same on every node, and which node this is; so the loaders give
every rank the shards of its own node. A part lies in a folder of its own, `<content id>.<node>of<nodes>x<copies>`: it
is not the whole.
"""

from __future__ import annotations

from dataclasses import replace

from dlio.stage.job import Job, Outcome
from dlio.stage.planning.placement import files_on, numbered, part, partitioned
from dlio.stage.transfer.fetch import fetch


def carry_out(job: Job) -> Outcome:
    """Returns the data set with this node's part of it.

    Raises:
        UsageError: the launcher numbers no nodes, or there are fewer nodes than copies.
        DlioError: as `dlio.stage.transfer.fetch.fetch` says.
    """
    (node, nodes), copies = numbered(job.topology), job.options.copies
    manifest = replace(partitioned(job.manifest, nodes, copies), node=node)
    return fetch(job, manifest, part(manifest.content_id, node, nodes, copies), files_on(manifest.shards, node))
