"""The decision of `auto` on this machine: collects its facts, on which the nodes agree if they can connect."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.dataset.location import TREE
from dlio.dataset.manifest import Manifest
from dlio.dataset.shard import files_of
from dlio.errors import StorageError, UsageError
from dlio.io.filesystems import filesystem_of, memory_left
from dlio.locking.owner import node_id
from dlio.stage.choose.auto import already_there, choose, choose_shared
from dlio.stage.choose.measured import applied
from dlio.stage.copies.node_cache import room
from dlio.stage.copies.ownership import folder_for_us
from dlio.stage.job import Job
from dlio.stage.meeting import mpi
from dlio.stage.planning.cost import Cost, Machine, Volume
from dlio.stage.strategies import Needs, load, names_for, needs_of

_MEMORY_SHARE = 0.5  # what a file system in memory may take of the free memory: the training needs the other half


def check_job(job: Job, strategy: str) -> None:
    """Refuses a destination that is a file, lies in the data set itself, or that needlessly is seen by other machines.

    Refuses a data set whose files have no digests, too: a copy could not be verified.

    Raises:
        UsageError: it is refused, or no such strategy exists.
    """
    needs = needs_of(strategy)
    if job.manifest.format == TREE:
        _check_tree(job, strategy, needs)
    elif any(not shard.files[0].digest for shard in job.manifest.shards):
        advice = "dlio index with --checksums and --overwrite reads each file once"
        raise UsageError(f"{job.manifest.root} was indexed without checksums, so no copy could be verified: {advice}")
    if job.dest.resolve().is_relative_to(job.manifest.path.resolve()):
        what = "" if job.manifest.format == TREE else "the data set "
        raise UsageError(f"{job.dest} is inside {what}{job.manifest.path}: stage to a folder outside it")
    for path in (job.dest, *job.dest.parents):
        if os.path.isfile(path):  # noqa: PTH113  an inaccessible path is not such a file
            raise UsageError(f"{path} is a file: name a folder to stage to")
    system = filesystem_of(job.dest)
    if system.shared and not job.options.allow_shared and not (needs and needs.shared):
        raise UsageError(
            f"{job.dest} lies on {system}, which other machines see too: "
            f"give a node-local folder, choose the strategy {names_for(shared=True)}, or allow a shared one"
        )


def _check_tree(job: Job, strategy: str, needs: Needs | None) -> None:
    """Refuses what does not go with a file or folder that is staged as it is; raises UsageError."""
    if needs and (needs.shared or needs.parts):
        advice = (
            "only data sets can be striped or partitioned: choose replicate or broadcast, and a folder on each node"
        )
        raise UsageError(f"{job.manifest.path} cannot be staged with {strategy}: {advice}")
    if job.options.mode is not None:
        raise UsageError(f"{job.manifest.path} keeps its modes: leave out the mode {job.options.mode:o}")


def decide(manifest: Manifest, dest: Path, topology: Topology, epochs: int = 0, machine_file: str = "") -> Cost:
    """Returns the strategy that `auto` stands for, if `epochs` are planned (0: unknown); the same on all nodes.

    Raises:
        UsageError: `machine_file` describes no machine.
        StorageError: it does not fit, or only in parts on which the nodes cannot agree.
    """
    whole = folder_for_us(dest, manifest.content_id, files_of(manifest.shards)).has_manifest()
    if whole and not mpi.can_agree(topology):
        return already_there(topology.num_nodes or 1)
    volume, machine = Volume.of(manifest), machine_of(manifest, dest, topology, machine_file)
    if filesystem_of(dest).shared:
        return replace(choose_shared(volume, machine), why=f"all nodes see {dest}, and copy to it together")
    everyone = mpi.processes(topology)
    machine = replace(machine, can_exchange=everyone is not None)
    if everyone:
        machine, whole = _agreed(machine, whole, everyone)
    if whole:
        return already_there(topology.num_nodes or 1)
    decision = choose(volume, machine, epochs)
    if not machine.can_exchange and load(decision.strategy).NEEDS.parts:
        raise StorageError(
            f"{decision.why}, but the nodes cannot agree on that here: if all have as much room as this one, "
            f"take the strategy {decision.strategy} with {decision.copies} copies"
        )
    return decision


def machine_of(manifest: Manifest, dest: Path, topology: Topology, machine_file: str = "") -> Machine:
    """Returns the machine as this node sees it, with the rates of `machine_file`, or those measured if it is ""."""
    system = filesystem_of(dest)
    free = room(folder_for_us(dest, manifest.content_id, files_of(manifest.shards)))
    if system.in_memory:
        free = min(free, int(memory_left() * _MEMORY_SHARE))
    seen = Machine(topology.num_nodes or 1, free, mpi.can_agree(topology))
    if not machine_file:
        return applied(seen, manifest, dest)
    from dlio.stage.choose.machine_file import described  # reads TOML

    return replace(described(machine_file, seen), free_bytes=free, can_exchange=seen.can_exchange)


def _agreed(machine: Machine, whole: bool, everyone: mpi.Processes) -> tuple[Machine, bool]:
    """Returns rank 0's machine with the room of the fullest node, and whether every node has the whole data set."""
    found = everyone.gather("auto", (node_id(), machine.free_bytes, whole, asdict(machine)))
    if None in found:
        raise StorageError(f"process {found.index(None)} of the job has ended before all could agree: see its output")
    nodes, frees, wholes, machines = zip(*found, strict=True)
    return replace(Machine(**machines[0]), num_nodes=len(set(nodes)), free_bytes=min(frees)), all(wholes)
