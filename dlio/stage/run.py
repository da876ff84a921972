"""One run of `stage`: choose a folder and a strategy, carry it out, sum up; or only show what would be done."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from dlio.cluster import mpi
from dlio.cluster.topology import Topology
from dlio.dataset.location import TREE
from dlio.dataset.manifest import Manifest
from dlio.errors import DlioError, StorageError
from dlio.io import trace
from dlio.io.files import FULL, storage_errors
from dlio.io.filesystems import existing, filesystem_of
from dlio.io.sizes import format_size
from dlio.stage.choose.choice import Choice, chosen, folder_of, machine_of, room_at
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import remember, safe_copies
from dlio.stage.engine.complete import complete
from dlio.stage.meeting.listing import ListOnce, by_processes
from dlio.stage.planning.cost import UNKNOWN_ROOM, Cost, Machine, Volume, pays_after_epochs
from dlio.stage.planning.job import Asked, Job
from dlio.stage.sources import StagingSource, check_readable
from dlio.stage.sources.anything import anything
from dlio.stage.strategies import AUTO, LayingOut, Needs, cost_of, load, needs_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageSummary:
    """The work of one process; its fields are the JSON that `dlio stage --json` prints.

    Attributes:
        path: the staged data set, file or folder.
        content_id: its content id.
        strategy: the name of the strategy carried out.
        node: this machine's host name.
        source_bytes: read from the source by this process.
        copied_bytes: written here by this process.
        seconds: from the call to its end.
        rates: the file of the rates by which `auto` decided; "" for those of a typical cluster.
        has_waited: another process copied it in the meantime, maybe with another strategy.
    """

    path: str
    content_id: str
    strategy: str
    node: str
    source_bytes: int
    copied_bytes: int
    seconds: float
    rates: str = ""
    has_waited: bool = False


def run(
    dataset: str | PathLike[str] | Manifest | StagingSource,
    dest: str | PathLike[str] | None,
    **asked: Unpack[Asked],
) -> tuple[Manifest, StageSummary]:
    """Returns the staged manifest and the summary; the arguments are those of `dlio.stage`, in other forms.

    If a local folder that was chosen here fills up, its room is given back and the next folder with room is
    taken, unless all nodes exchange data.

    Raises:
        DlioError: as `dlio.stage`.
    """
    started, needs, full = time.monotonic(), needs_of(asked.get("strategy", AUTO)), list[Path]()
    asked["topology"] = topology = asked.get("topology") or Topology.from_env()
    with _listing(topology, needs) as list_once:
        source = anything(dataset, list_once)
        while True:
            choice = chosen(source, dest, without=full, **asked)
            job = choice.job
            if dest is None:
                level = logging.WARNING if full else logging.INFO
                _log.log(level, "staging to %s, on %s", job.dest, filesystem_of(job.dest))
            try:
                return _carry_out(choice, started)
            except StorageError as error:
                together = needs.exchange if needs else mpi.can_agree(topology)
                if dest is not None or together or error.errno not in FULL:
                    raise
                _log.warning("%s", error)
                full.append(job.dest)


def _listing(topology: Topology, needs: Needs | None) -> AbstractContextManager[ListOnce | None]:
    """Returns what lists a folder once for all nodes, if they exchange files, or `auto` may choose that they do."""
    if topology.world_size == 1 or (needs and not needs.exchange):
        return nullcontext()
    return by_processes(topology, by_folder=needs is not None)


def _warn_of_others(job: Job, name: str) -> None:
    """Warns of a copy that is being filled here by a strategy whose copies have other names: it is not joined."""
    for copy in safe_copies(job.manifest.content_id, [job.dest]):
        if ("." in copy.copy) != ("." in name) and not copy.has_manifest() and LiveFolder(copy).agent():
            _log.warning("%s is being filled, and %s is one more copy, by another strategy", copy.path, name)


def _carry_out(choice: Choice, started: float) -> tuple[Manifest, StageSummary]:
    """Returns the same as `run`."""
    job, strategy, meeting = choice.job, load(choice.name), None
    if choice.cost:
        _log.info("staging by %s: %s", choice.name, choice.cost.why)
    else:
        _warn_of_others(job, strategy.copy_name(job))
    if not strategy.NEEDS.exchange:
        mpi.agreed()
    try:
        with trace.span("stage", "stage", str(job.source)):
            if strategy.NEEDS.exchange:
                from dlio.stage.meeting.gathering import met  # loaded if needed, as the next one

                job, meeting = met(job)
            outcome = complete(job, strategy, meeting)
    except DlioError:
        if job.topology.world_size == 1:  # else another process may be running there
            from dlio.stage.upkeep.clean import abandon

            with suppress(DlioError, OSError):  # the first error counts
                abandon(job.dest, strategy.copy_name(job))
        raise
    remember(job.dest)
    staged = outcome.manifest
    if staged.format == TREE:  # its digests were found on the way
        staged = Manifest.load(staged.root)
    return staged, StageSummary(
        path=str(staged.path),
        content_id=job.manifest.content_id,
        strategy=choice.name,
        node=socket.gethostname(),
        source_bytes=outcome.source_bytes,
        copied_bytes=outcome.copied_bytes,
        seconds=round(time.monotonic() - started, 3),
        rates=choice.cost.rates if choice.cost else "",
        has_waited=outcome.has_waited,
    )


@dataclass(frozen=True, slots=True)
class Preview:
    """What `run` would do; its fields are the JSON that `dlio stage --dry-run --json` prints.

    Attributes:
        decision: the strategy and its predicted cost.
        path: the staged data set, file or folder on this node.
        content_id: its content id.
        file_system: the file system of the destination; "" if that does not exist on this machine.
        is_dataset: whether it is a data set, and no other file or folder, which has no epochs.
        pays_after_epochs: after how many epochs staging has paid for itself; None for never.
        layout: how files shall be striped; "" if stripes are not chosen.
        rates: the machine file, or that of the rates measured; "" for those of a typical cluster.
        note: what could not be checked.
    """

    decision: Cost
    path: str
    content_id: str
    file_system: str
    is_dataset: bool
    pays_after_epochs: float | None
    layout: str = ""
    rates: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns all fields in one flat dictionary."""
        return asdict(self.decision) | {name: value for name, value in asdict(self).items() if name != "decision"}


def preview(
    dataset: str | PathLike[str] | Manifest | StagingSource,
    dest: str | PathLike[str] | None,
    **asked: Unpack[Asked],
) -> Preview:
    """Returns what `run` with the same arguments would do; writes nothing.

    Raises:
        DlioError: as `dlio.stage`, as far as it is known without reading a file of the data set. The first rank checks
            some files of the source.
    """
    from dlio.io.lustre import layouts_text  # runs commands

    choice = chosen(anything(dataset), dest, **asked)
    job, strategy = choice.job, load(choice.name)
    copy = strategy.copy_name(job)
    free = choice.room if copy == job.manifest.content_id else None  # which is the room of the whole copy
    folder, free = folder_of(job, copy), free or room_at(job, copy)
    machine, is_new = machine_of(job, free), not folder.has_manifest()
    decision = choice.cost or _asked_for(choice.name, job, machine)
    if free and is_new:
        _check_writable(folder.path.parent)
        plan, whole = strategy.plan(job), job.manifest.num_bytes
        needed = whole if strategy.NEEDS.shared else decision.bytes_per_node
        free.check_room(folder.path, needed, plan.count(plan.wanted))
    if job.topology.rank == 0 and is_new:
        check_readable(job.manifest)
    is_dataset = job.manifest.format != TREE
    pays_after = pays_after_epochs(decision.seconds, job.manifest.num_bytes, machine) if is_dataset else math.inf
    return Preview(
        decision,
        str(replace(job.manifest, root=folder.path).path),
        job.manifest.content_id,
        str(free or ""),
        is_dataset,
        round(pays_after, 1) if math.isfinite(pays_after) else None,
        layouts_text(strategy.layouts(job).values()) if isinstance(strategy, LayingOut) else "",
        machine.rates,
        "" if free else f"{job.dest} does not exist here: its room and rights are not checked",
    )


def _check_writable(folder: Path) -> None:
    """Raises StorageError, as making the folder would, if this user can make nothing there."""
    with storage_errors("create", folder):
        if not os.access(around := existing(folder), os.W_OK | os.X_OK, effective_ids=True):
            is_read_only = os.statvfs(around).f_flag & os.ST_RDONLY
            raise OSError(refused := errno.EROFS if is_read_only else errno.EACCES, os.strerror(refused))


def _asked_for(strategy: str, job: Job, machine: Machine) -> Cost:
    """Returns the cost of a strategy that the user named, and whether it fits."""
    cost = cost_of(strategy, Volume.of(job.manifest), machine, job.options.copies)
    room = f", and this one has room for {format_size(machine.free_bytes)}" if machine.free_bytes < UNKNOWN_ROOM else ""
    return replace(cost, why=f"it was asked for; {format_size(cost.bytes_per_node)} on each node{room}")
