"""What `stage` would do, without doing it: `dlio stage --dry-run`."""

from __future__ import annotations

import errno
import math
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from dlio.cluster.topology import Topology
from dlio.dataset.location import TREE
from dlio.dataset.manifest import Manifest
from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.io.filesystems import filesystem_of
from dlio.io.sizes import format_size
from dlio.stage.choose.decide import check_job, decide, machine_of
from dlio.stage.choose.destination import with_dest
from dlio.stage.copies.ownership import folder_for_us
from dlio.stage.job import NO_LISTENERS, NO_OPTIONS, Job, Listeners, Options
from dlio.stage.planning.cost import Cost, Machine, Volume, pays_after_epochs
from dlio.stage.planning.striping import layouts_text
from dlio.stage.strategies import AUTO, LayingOut, cost_of, load
from dlio.stage.transfer.source import StagingSource
from dlio.stage.transfer.tree import anything


@dataclass(frozen=True, slots=True)
class Preview:
    """What `stage` would do; its fields are the JSON that `dlio stage --dry-run --json` prints.

    Attributes:
        decision: the strategy and its predicted cost.
        path: the staged data set, file or folder on this node.
        content_id: its content id.
        file_system: the file system of the destination.
        is_dataset: whether it is a data set, and no other file or folder, which has no epochs.
        pays_after_epochs: after how many epochs staging has paid for itself; None for never.
        layout: how files shall be striped; "" if stripes are not chosen.
        rates: the machine file, or that of the rates measured; "" for those of a typical cluster.
    """

    decision: Cost
    path: str
    content_id: str
    file_system: str
    is_dataset: bool
    pays_after_epochs: float | None
    layout: str = ""
    rates: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns all fields in one flat dictionary."""
        return asdict(self.decision) | {name: value for name, value in asdict(self).items() if name != "decision"}


def preview(
    dataset: str | PathLike[str] | Manifest | StagingSource,
    dest: str | PathLike[str] | None,
    *,
    strategy: str = AUTO,
    topology: Topology | None = None,
    options: Options = NO_OPTIONS,
    listeners: Listeners = NO_LISTENERS,
) -> Preview:
    """Returns what `dlio.stage.run.run` with the same arguments would do; writes nothing.

    Raises:
        DlioError: as `dlio.stage`.
    """
    job = Job(anything(dataset), Path(dest or "").absolute(), topology or Topology.from_env(), options, listeners)
    job = job if dest is not None else with_dest(job, strategy)
    check_job(job, strategy)
    machine = machine_of(job.manifest, job.dest, job.topology, options.machine)
    if strategy == AUTO:
        decision = decide(job.manifest, job.dest, job.topology, options.epochs, options.machine)
        job = replace(job, options=replace(options, copies=decision.copies))
    else:
        decision = _asked_for(strategy, job, machine)
    if decision.bytes_per_node > machine.free_bytes:
        room = f"{job.dest} has room for {machine.free_bytes:,} bytes, {decision.bytes_per_node:,} are needed"
        raise StorageError(errno.ENOSPC, f"{room} with {decision.strategy}: free some space or choose another folder")
    chosen = load(decision.strategy)
    folder = folder_for_us(job.dest, chosen.copy_name(job), files_of(job.manifest.shards))
    is_dataset = job.manifest.format != TREE
    pays_after = pays_after_epochs(decision.seconds, job.manifest.num_bytes, machine) if is_dataset else math.inf
    return Preview(
        decision,
        str(replace(job.manifest, root=folder.path).path),
        job.manifest.content_id,
        str(filesystem_of(job.dest)),
        is_dataset,
        round(pays_after, 1) if math.isfinite(pays_after) else None,
        layouts_text(chosen.layouts(job).values()) if isinstance(chosen, LayingOut) else "",
        machine.rates,
    )


def _asked_for(strategy: str, job: Job, machine: Machine) -> Cost:
    """Returns the cost of a strategy that the user named, and whether it fits."""
    cost = cost_of(strategy, Volume.of(job.manifest), machine, job.options.copies)
    room = f"{format_size(cost.bytes_per_node)} on each node, and this one has room for"
    return replace(cost, why=f"it was asked for; {room} {format_size(machine.free_bytes)}")
