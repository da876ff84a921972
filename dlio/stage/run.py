"""One run of `stage`: choose a folder and a strategy, carry it out, sum up."""

from __future__ import annotations

import errno
import logging
import socket
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.dataset.location import TREE
from dlio.dataset.manifest import Manifest
from dlio.errors import DlioError, StorageError, UsageError
from dlio.io import trace
from dlio.io.filesystems import filesystem_of
from dlio.stage.choose.decide import check_job, decide
from dlio.stage.choose.destination import learn_id, with_dest
from dlio.stage.copies.locations import remember
from dlio.stage.engine.complete import complete
from dlio.stage.job import NO_LISTENERS, NO_OPTIONS, Job, Listeners, Options, Outcome
from dlio.stage.meeting import mpi
from dlio.stage.meeting.listing import ListOnce, by_processes
from dlio.stage.strategies import AUTO, Needs, Strategy, load, needs_of
from dlio.stage.transfer.source import StagingSource
from dlio.stage.transfer.tree import anything

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
    """

    path: str
    content_id: str
    strategy: str
    node: str
    source_bytes: int
    copied_bytes: int
    seconds: float
    rates: str = ""


def run(
    dataset: str | PathLike[str] | Manifest | StagingSource,
    dest: str | PathLike[str] | None,
    *,
    strategy: str = AUTO,
    topology: Topology | None = None,
    options: Options = NO_OPTIONS,
    listeners: Listeners = NO_LISTENERS,
) -> tuple[Manifest, StageSummary]:
    """Returns the staged manifest and the summary; the arguments are those of `dlio.stage`.

    If a local folder that was chosen here fills up, its room is given back and the next folder with room is
    taken, unless all nodes exchange data.

    Raises:
        DlioError: as `dlio.stage`.
    """
    started = time.monotonic()
    needs = needs_of(strategy)
    if options.mode is not None and options.mode & ~0o044 != 0o600:
        raise UsageError(f"mode {options.mode:o}: staged files can be 600, 640 or 644")
    topology = topology or Topology.from_env()
    with _listing(topology, needs) as list_once:
        job = Job(anything(dataset, list_once), Path(dest or "").absolute(), topology, options, listeners)
        return _run(job, dest, strategy, needs, started)


def _listing(topology: Topology, needs: Needs | None) -> AbstractContextManager[ListOnce | None]:
    """Returns what lists a folder once for all nodes, if they exchange files, or `auto` may choose that they do."""
    if topology.world_size == 1 or (needs and not needs.exchange):
        return nullcontext()
    return by_processes(topology, by_folder=needs is not None)


def _run(
    job: Job, dest: str | PathLike[str] | None, strategy: str, needs: Needs | None, started: float
) -> tuple[Manifest, StageSummary]:
    """Returns the same as `run`, once the source is known."""
    if dest is not None:
        learn_id(job.manifest, job.dest)
        return _carry_out(job, strategy, started)
    full: list[Path] = []
    while True:
        job = with_dest(job, strategy, full)
        _log.log(logging.WARNING if full else logging.INFO, "staging to %s, on %s", job.dest, filesystem_of(job.dest))
        try:
            return _carry_out(job, strategy, started)
        except StorageError as error:
            together = needs.exchange if needs else mpi.can_agree(job.topology)
            if together or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _log.warning("%s", error)
            full.append(job.dest)


def _carried_out(chosen: Strategy, job: Job) -> Outcome:
    try:
        if chosen.NEEDS.shared:
            from dlio.stage.engine.shared import complete_shared  # loaded if needed, as the next two

            return complete_shared(job, chosen)
        meeting = None
        if chosen.NEEDS.exchange:
            from dlio.stage.meeting.gathering import met

            job, meeting = met(job)
        return complete(job, chosen, meeting)
    except DlioError:
        if job.topology.world_size == 1:  # else another process may be running there
            from dlio.stage.upkeep.clean import abandon

            with suppress(DlioError, OSError):  # the first error counts
                abandon(job.dest, chosen.copy_name(job))
        raise


def _carry_out(job: Job, strategy: str, started: float) -> tuple[Manifest, StageSummary]:
    """Returns the same as `run`, for the folder `job.dest`."""
    check_job(job, strategy)
    rates = ""
    if strategy == AUTO:
        decision = decide(job.manifest, job.dest, job.topology, job.options.epochs, job.options.machine)
        rates = decision.rates
        strategy, job = decision.strategy, replace(job, options=replace(job.options, copies=decision.copies))
        _log.info("staging by %s: %s", strategy, decision.why)
        check_job(job, strategy)
    chosen = load(strategy)
    if not chosen.NEEDS.exchange:
        mpi.agreed()
    with trace.span("stage", "stage", str(job.source)):
        outcome = _carried_out(chosen, job)
    remember(job.dest)
    staged = outcome.manifest
    if staged.format == TREE:  # its digests were found on the way
        staged = Manifest.load(staged.root)
    return staged, StageSummary(
        path=str(staged.path),
        content_id=job.manifest.content_id,
        strategy=strategy,
        node=socket.gethostname(),
        source_bytes=outcome.source_bytes,
        copied_bytes=outcome.copied_bytes,
        seconds=round(time.monotonic() - started, 3),
        rates=rates,
    )
