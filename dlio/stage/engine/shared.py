"""Completing a copy that all nodes see, as `stripe` makes it: the nodes fill it together, each its share first.

Then a node goes through the other shares. It waits for a share whose node works, and copies a share whose node died or
never came. So the copy is complete when the first node returns, whichever node is lost.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dlio.dataset.shard import files_of
from dlio.locking.claim import claimed
from dlio.stage.copies.base_folder import check_names
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import check_safe, choosing_again, folder_for_us, open_for_us
from dlio.stage.engine.complete import fill, residue_removed
from dlio.stage.engine.foreground import Foreground
from dlio.stage.engine.writing import Create
from dlio.stage.job import Job, Outcome
from dlio.stage.planning.plan import Plan
from dlio.stage.strategies import LayingOut, Strategy


def complete_shared(job: Job, strategy: Strategy) -> Outcome:
    """Returns the staged data set in a folder that all nodes see; raises as `complete`, or if a layout is refused."""
    return choosing_again(partial(_complete, job, strategy))


def _complete(job: Job, strategy: Strategy) -> Outcome:
    """Returns as `complete_shared`; raises TakenError if another user has taken the folder."""
    check_names(job.manifest)
    whole = folder_for_us(job.dest, strategy.copy_name(job), files_of(job.manifest.shards))
    staged = replace(job.manifest, root=whole.path)
    if whole.holds(files_of(job.manifest.shards)):
        check_safe(whole)
        return Outcome(staged)
    open_for_us(whole)
    laid_out = strategy.layouts(job) if isinstance(strategy, LayingOut) else {}
    create = (lambda path, file: laid_out[file.name].create(path)) if laid_out else None
    node, nodes = job.topology.node_and_count or (0, 1)
    done = []
    for share in ((node + step) % nodes for step in range(nodes)):
        plan = strategy.plan(replace(job, topology=replace(job.topology, node_rank=share, num_nodes=nodes)))
        done.append(_copy_share(job, replace(whole, share=f"{share}of{nodes}"), plan, create))
    for name, layout in laid_out.items():
        layout.check(whole.path / name)
    with claimed(whole.claims / "manifest", whole.is_published) as claim:
        if claim is not None:
            for share in range(nodes):
                LiveFolder(replace(whole, share=f"{share}of{nodes}")).remove_unfinished()  # of killed nodes
            whole.finish(job.manifest, [file.name for file in files_of(job.manifest.shards)], job.access(None))
    check_safe(whole)
    return Outcome(staged, sum(each.source_bytes for each in done), sum(each.copied_bytes for each in done))


def _copy_share(job: Job, folder: StagedFolder, plan: Plan, create: Create | None) -> Outcome:
    """Copies one share, or waits for the node that copies it."""
    with claimed(folder.claims, lambda: not folder.missing(plan.wanted)) as claims:
        if claims is None:
            return Outcome(job.manifest)
        with residue_removed(folder, claims[0]):
            return fill(job, plan, folder, claims, Foreground(job), create=create)
