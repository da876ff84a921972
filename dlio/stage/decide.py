"""What `auto` does here: the facts of this machine, agreed on by all nodes where they can talk, given to the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dlio.errors import StorageError
from dlio.filesystems import filesystem_of, memory_left
from dlio.manifest import Manifest
from dlio.stage import model
from dlio.stage.cache import room
from dlio.stage.folder import check_dest, folder_for_us
from dlio.stage.job import all_files
from dlio.stage.model import Decision, Machine
from dlio.stage.ring import can_exchange, world
from dlio.stage.source import Source, source_of
from dlio.topology import Topology, node_id

_MEMORY_SHARE = 0.5  # what a file system in memory may take of what is left: the training needs the other half


@dataclass(frozen=True, slots=True)
class Preview:
    """What `stage` would do; its fields are the JSON that `dlio stage --dry-run --json` prints.

    Attributes:
        decision: the strategy and its predicted cost.
        path: where the data set would come to lie on this node.
        content_id: its content id.
        file_system: what the destination lies on.
        pays_after_epochs: after how many epochs staging has paid for itself, at the model's default rates.
    """

    decision: Decision
    path: str
    content_id: str
    file_system: str
    pays_after_epochs: float

    def to_json(self) -> dict[str, Any]:
        """Returns all fields in one flat dictionary."""
        return asdict(self.decision) | {name: value for name, value in asdict(self).items() if name != "decision"}


def preview(
    dataset: str | Path | Manifest | Source,
    dest: str | Path,
    *,
    strategy: str = "auto",
    copies: int = 1,
    epochs: int = 0,
    topology: Topology | None = None,
) -> Preview:
    """Returns what `dlio.stage` with the same arguments would do; nothing is written.

    Raises:
        DlioError: as `dlio.stage` says.
    """
    manifest = source_of(dataset).manifest
    topology, dest = topology or Topology.from_env(), Path(dest).absolute()
    check_dest(manifest, dest)
    machine = machine_of(manifest, dest, topology)
    if strategy == "auto":
        decision = decide(manifest, dest, topology, epochs)
    else:
        decision = next(
            way for way in model.all_ways(manifest.num_bytes, machine, copies) if way.strategy == strategy
        )
    return Preview(
        decision,
        str(folder_for_us(dest, manifest.content_id, all_files(manifest)).path),
        manifest.content_id,
        str(filesystem_of(dest)),
        round(model.pays_after_epochs(decision, manifest.num_bytes, machine), 1),
    )


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
        return replace(model.stripe(manifest.num_bytes, machine), why=why)
    if machine.can_exchange:
        machine, whole = _agreed(machine, whole, topology)
    if whole:
        return there
    largest = max((shard.num_bytes for shard in manifest.shards), default=0)
    decision = model.choose(manifest.num_bytes, largest, machine, epochs)
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
    told = world(topology).gather((node_id(), machine.free_bytes, whole))
    nodes, frees, wholes = zip(*told, strict=True)
    return replace(machine, num_nodes=len(set(nodes)), free_bytes=min(frees)), all(wholes)
