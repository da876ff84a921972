"""What `auto` does here: the facts of this machine, agreed on by all nodes where they can talk, given to the model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError, UsageError
from dlio.io.filesystems import filesystem_of, memory_left
from dlio.io.sizes import format_size
from dlio.locking.owner import node_id
from dlio.stage.cache.folder import check_dest
from dlio.stage.cache.node_cache import room
from dlio.stage.cache.ownership import folder_for_us
from dlio.stage.comm.base import can_exchange, world
from dlio.stage.job import NO_OPTIONS, Job, Options, all_files
from dlio.stage.planning import cost, striping
from dlio.stage.planning.cost import Decision, Machine
from dlio.stage.planning.placement import numbered, part
from dlio.stage.strategies.stripe import layouts
from dlio.stage.transfer.source import Source, source_of

_MEMORY_SHARE = 0.5  # what a file system in memory may take of what is left: the training needs the other half


@dataclass(frozen=True, slots=True)
class Preview:
    """What `stage` would do; its fields are the JSON that `dlio stage --dry-run --json` prints.

    Attributes:
        decision: the strategy and its predicted cost.
        path: where the data set would come to lie on this node.
        content_id: its content id.
        file_system: what the destination lies on.
        pays_after_epochs: after how many epochs staging has paid for itself, at the model's default rates; None for
            never.
        layout: how files are to be striped; "" where stripes are not chosen.
    """

    decision: Decision
    path: str
    content_id: str
    file_system: str
    pays_after_epochs: float | None
    layout: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns all fields in one flat dictionary."""
        return asdict(self.decision) | {name: value for name, value in asdict(self).items() if name != "decision"}


def preview(
    dataset: str | Path | Manifest | Source,
    dest: str | Path,
    *,
    strategy: str = "auto",
    options: Options = NO_OPTIONS,
    topology: Topology | None = None,
    allow_shared: bool = False,
) -> Preview:
    """Returns what `dlio.stage` with the same arguments would do; nothing is written.

    Raises:
        DlioError: as `dlio.stage` says.
    """
    source = source_of(dataset)
    job = Job(source, Path(dest).absolute(), topology or Topology.from_env(), options)
    check_dest(job.manifest, job.dest)
    check_local(job.dest, strategy, allow_shared)
    machine = machine_of(job.manifest, job.dest, job.topology)
    if strategy == "auto":
        decision = decide(job.manifest, job.dest, job.topology, options.epochs)
    else:
        decision = _asked_for(strategy, job, machine)
    pays_after = cost.pays_after_epochs(decision, job.manifest.num_bytes, machine)
    return Preview(
        decision,
        str(folder_for_us(job.dest, _copy(decision, job), all_files(job.manifest)).path),
        job.manifest.content_id,
        str(filesystem_of(job.dest)),
        round(pays_after, 1) if math.isfinite(pays_after) else None,
        striping.described(layouts(job).values()) if decision.strategy == "stripe" else "",
    )


def check_local(dest: Path, strategy: str, allow_shared: bool) -> None:
    """Refuses a destination that other machines see too, unless the strategy is for such, or it is allowed.

    Raises:
        UsageError: it is refused.
    """
    system = filesystem_of(dest)
    if system.shared and not allow_shared and strategy != "stripe":
        raise UsageError(
            f"{dest} lies on {system}, which other machines see too: "
            "give a node-local folder, choose the strategy stripe, or allow a shared one"
        )


def _asked_for(strategy: str, job: Job, machine: Machine) -> Decision:
    """Returns what a strategy costs that was named, and whether it fits."""
    ways = cost.all_ways(job.manifest.num_bytes, machine, job.options.copies)
    decision = next(way for way in ways if way.strategy == strategy)
    room = f"{format_size(decision.bytes_per_node)} on each node, and this one has room for"
    fits = "" if decision.bytes_per_node <= machine.free_bytes else ": it does not fit"
    return replace(decision, why=f"it was asked for; {room} {format_size(machine.free_bytes)}{fits}")


def _copy(decision: Decision, job: Job) -> str:
    """Returns the name of the copy that this node is to get."""
    if decision.strategy != "partition":
        return job.manifest.content_id
    return part(job.manifest.content_id, *numbered(job.topology), decision.copies)


def decide(manifest: Manifest, dest: Path, topology: Topology, epochs: int = 0) -> Decision:
    """Returns the strategy that `auto` stands for where so many epochs are planned (0: unknown); the same on all nodes.

    Raises:
        StorageError: it fits in no way, or only in parts on which the nodes cannot agree.
    """
    whole = folder_for_us(dest, manifest.content_id, all_files(manifest)).has_manifest()
    there = Decision("replicate", topology.num_nodes or 1, 0, 0, 0.0, "it is already there")
    if whole and not can_exchange(topology):
        return there
    machine = machine_of(manifest, dest, topology)
    if filesystem_of(dest).shared:
        why = f"{dest} is seen by all nodes, which copy it together"
        return replace(cost.stripe(manifest.num_bytes, machine), why=why)
    if machine.can_exchange:
        machine, whole = _agreed(machine, whole, topology)
    if whole:
        return there
    largest = max((shard.num_bytes for shard in manifest.shards), default=0)
    decision = cost.choose(manifest.num_bytes, largest, machine, epochs)
    if decision.strategy == "partition" and not machine.can_exchange:
        raise StorageError(
            f"{decision.why}, but the nodes cannot agree on that here: "
            f"if all have as much room as this one, take the strategy partition with {decision.copies} copies"
        )
    return decision


def machine_of(manifest: Manifest, dest: Path, topology: Topology) -> Machine:
    """Returns the machine as this node sees it; the rates are the model's defaults."""
    system = filesystem_of(dest)
    free = room(folder_for_us(dest, manifest.content_id, all_files(manifest)))
    if system.in_memory:
        free = min(free, int(memory_left() * _MEMORY_SHARE))
    return Machine(topology.num_nodes or 1, free, can_exchange(topology))


def _agreed(machine: Machine, whole: bool, topology: Topology) -> tuple[Machine, bool]:
    """Returns the machine with the room of the fullest node, and whether every node has the whole data set."""
    with world(topology) as everyone:
        told = everyone.gather((node_id(), machine.free_bytes, whole))
    nodes, frees, wholes = zip(*told, strict=True)
    return replace(machine, num_nodes=len(set(nodes)), free_bytes=min(frees)), all(wholes)
