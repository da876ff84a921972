"""One run of `stage`: look, carry out a strategy, sum up."""

from __future__ import annotations

import errno
import importlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError, UsageError
from dlio.stage import strategies
from dlio.stage.cache.folder import check_dest
from dlio.stage.comm.base import can_exchange
from dlio.stage.comm.progress_channel import seen_by_rank_0
from dlio.stage.decide import check_local, decide
from dlio.stage.destination import choose_dest
from dlio.stage.job import NO_OPTIONS, Job, NodeProgress, Options
from dlio.stage.transfer.source import Source, source_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """What one process did; its fields are the JSON that `dlio stage --json` prints.

    Attributes:
        path: the staged data set.
        content_id: its content id.
        strategy: the name of the strategy carried out.
        node: this machine's host name.
        source_bytes: read from the source by this process.
        copied_bytes: written here by this process.
        seconds: from the call to its end.
    """

    path: str
    content_id: str
    strategy: str
    node: str
    source_bytes: int
    copied_bytes: int
    seconds: float


def run(
    dataset: str | PathLike[str] | Manifest | Source,
    dest: str | PathLike[str] | None,
    *,
    strategy: str,
    topology: Topology | None = None,
    options: Options = NO_OPTIONS,
    allow_shared: bool = False,
    report: Callable[[int], None] | None = None,
    expect: Callable[[int], None] | None = None,
    watch: Callable[[Sequence[NodeProgress]], None] | None = None,
) -> tuple[Manifest, Summary]:
    """Returns the staged manifest and the summary; `expect` and `watch` are as in `Job`, the rest as in `dlio.stage`.

    A local folder that was chosen here and fills up meanwhile is given back, and the next one with room is taken,
    unless all nodes copy together.

    Raises:
        DlioError: as `dlio.stage` says.
    """
    started = time.monotonic()
    if strategy not in ("auto", *strategies.names()):
        raise UsageError(f"there is no strategy {strategy!r}: choose one of auto, {', '.join(strategies.names())}")
    if options.mode is not None and options.mode & ~0o044 != 0o600:
        raise UsageError(f"mode {options.mode:o}: staged files can be 600, 640 or 644")
    source = source_of(dataset)
    manifest = source.manifest
    topology = topology or Topology.from_env()
    job = Job(source, Path(dest or "").absolute(), topology, options, report, expect, watch)
    if dest is not None:
        return _carry_out(job, strategy, allow_shared, started)
    full: list[Path] = []
    while True:
        dest, system = choose_dest(manifest, topology, strategy=strategy, copies=options.copies, without=full)
        _log.log(logging.WARNING if full else logging.INFO, "staging to %s, on %s", dest, system)
        try:
            return _carry_out(replace(job, dest=dest), strategy, allow_shared, started)
        except StorageError as error:
            together = strategy == "broadcast" or (strategy == "auto" and can_exchange(topology))
            if together or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _log.warning("%s", error)
            full.append(dest)


def _carry_out(job: Job, strategy: str, allow_shared: bool, started: float) -> tuple[Manifest, Summary]:
    """Returns what `run` does, for the folder `job.dest`."""
    manifest, dest, topology, options = job.manifest, job.dest, job.topology, job.options
    check_dest(manifest, dest)
    check_local(dest, strategy, allow_shared)
    if strategy == "auto":
        decision = decide(manifest, dest, topology, options.epochs)
        strategy, job = decision.strategy, replace(job, options=replace(options, copies=decision.copies))
        _log.info("staging by %s: %s", strategy, decision.why)
    carry_out = importlib.import_module(f"{strategies.__name__}.{strategy}").carry_out
    with seen_by_rank_0(job) if strategy != "broadcast" else nullcontext(job) as seen:
        outcome = carry_out(seen)
    return outcome.manifest, Summary(
        path=str(outcome.manifest.root),
        content_id=manifest.content_id,
        strategy=strategy,
        node=socket.gethostname(),
        source_bytes=outcome.source_bytes,
        copied_bytes=outcome.copied_bytes,
        seconds=round(time.monotonic() - started, 3),
    )
