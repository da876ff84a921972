"""The verbs that bring packed data sets to the nodes and clear them away: stage, plan, clean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.cli.options import add_verb, count, local_path, octal, size
from dlio.cli.output import print_report, say
from dlio.cli.terminable import terminable
from dlio.errors import EXIT_DONE
from dlio.manifest import Manifest
from dlio.progress import Progress
from dlio.sizes import format_size
from dlio.stage import strategies

if TYPE_CHECKING:
    from dlio.stage.job import NodeProgress, Options
    from dlio.stage.run import Summary
    from dlio.stage.source import Source
    from dlio.topology import Topology


def add_verbs(verbs: Any) -> None:
    """Adds these verbs to the command line."""
    bring = add_verb(verbs, stage)
    bring.set_defaults(resumes=True)
    _dataset_or_url(bring)
    where = "a folder on node-local storage (default: the first that has room); on Lustre for stripe"
    bring.add_argument("dest", metavar="DEST", nargs="?", type=local_path, help=where)
    bring.add_argument("--strategy", default="auto", choices=["auto", *strategies.names()], help="who copies what")
    bring.add_argument("--copies", type=count, default=1, metavar="R", help="partition: nodes that hold each shard")
    bring.add_argument("--epochs", type=count, default=0, metavar="E", help="planned, for auto (default: not known)")
    bring.add_argument("--stripe-count", type=count, default=0, metavar="N", help="stripe: targets for each file")
    bring.add_argument("--stripe-size", type=size, default=0, metavar="SIZE", help="stripe: bytes on a target in turn")
    bring.add_argument("--pool", default="", help="stripe: the pool of storage targets")
    bring.add_argument("--ost-per-rank", action="store_true", help="stripe: place file k on storage target k")
    bring.add_argument("--allow-shared", action="store_true", help="take a DEST that other machines see too")
    modes = "permissions of the staged files, such as 644 (default: the source's; for a URL 600)"
    bring.add_argument("--mode", type=octal, metavar="MODE", help=modes)
    bring.add_argument("--dry-run", action="store_true", help="print the decision and why, and write nothing")
    _plan_options(add_verb(verbs, plan))
    sweep = add_verb(verbs, clean)
    sweep.add_argument(
        "dest", metavar="DEST", nargs="?", type=local_path, help="as given to stage (default: where it looks)"
    )
    sweep.add_argument("--job", metavar="ID", help="the scheduler's job id (default: this job's)")
    sweep.add_argument("--keep", action="store_true", help="end the leases only, and leave the copies for the next job")


def _dataset_or_url(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("dataset", metavar="DATASET", help="the folder that holds manifest.jsonl, or its URL")


def _plan_options(verb: argparse.ArgumentParser) -> None:
    _dataset_or_url(verb)
    verb.add_argument("--nodes", type=count, required=True, metavar="N", help="nodes of the job")
    verb.add_argument("--local-free", type=size, default=1 << 40, metavar="SIZE", help="room on each node (1TiB)")
    verb.add_argument("--source-rate", type=size, metavar="SIZE", help="all nodes' bytes a second")
    verb.add_argument("--client-rate", type=size, metavar="SIZE", help="one node's, from the source")
    verb.add_argument("--network-rate", type=size, metavar="SIZE", help="one node's, to another")
    verb.add_argument("--local-rate", type=size, metavar="SIZE", help="one node's, to its storage")
    verb.add_argument("--osts", type=count, default=0, metavar="N", help="stripe: storage targets (default: enough)")
    verb.add_argument("--copies", type=count, default=1, metavar="R", help="partition: nodes that hold each shard")
    verb.add_argument("--epochs", type=count, default=0, metavar="E", help="planned, for auto (default: not known)")


def stage(args: argparse.Namespace) -> int:
    """Brings the packed data set DATASET to DEST, on each node once; every process of a job may call it.

    A copy that is there already is found again at once. The last line printed is the folder of the staged data set.
    With --json one process of each node prints an object: its first, and any other that had to copy in its place.
    """
    from dlio.stage.mpi_board import parting
    from dlio.stage.ring import start_together
    from dlio.topology import Topology

    topology = Topology.from_env()
    watch = not args.quiet and not args.dry_run
    with parting():
        if watch or args.strategy in ("auto", "broadcast"):
            start_together(topology, to_broadcast=args.strategy == "broadcast" and not args.dry_run)
        return _stage(args, topology, watch=watch)


def _stage(args: argparse.Namespace, topology: Topology, *, watch: bool) -> int:
    """Does what `stage` does once all processes have started."""
    from dlio.stage.run import run
    from dlio.stage.source import source_of

    source = source_of(args.dataset)
    chosen = args.dest or _chosen_dest(args, source.manifest, topology)
    if args.dry_run:
        return _preview(args, source, chosen, topology)
    quiet = args.quiet or topology.rank != 0
    with terminable(), Progress("stage", unit="bytes", quiet=quiet) as progress:
        shown = _Shown(progress, topology)
        staged, summary = run(
            source,
            args.dest,
            strategy=args.strategy,
            topology=topology,
            options=_options(args),
            allow_shared=args.allow_shared,
            report=shown.here,
            expect=shown.expect,
            watch=shown.everywhere if watch else None,
        )
    if args.json:
        leads = not topology.local_rank or summary.copied_bytes > 0
        return print_report(args, asdict(summary)) if leads else EXIT_DONE
    say(args, _in_one_line(summary, staged))
    say(args, str(staged.root))
    return EXIT_DONE


def _in_one_line(summary: Summary, staged: Manifest) -> str:
    copied, rate = summary.copied_bytes, summary.copied_bytes / max(summary.seconds, 1e-9)
    return (
        f"{summary.node}: {staged.num_samples} samples in {len(staged.shards)} shards, {format_size(copied)} copied "
        f"in {summary.seconds:.2f} s, {format_size(rate)}/s ({summary.strategy})"
    )


def _options(args: argparse.Namespace) -> Options:
    from dlio.stage.job import Options

    return Options(
        args.copies, args.stripe_count, args.stripe_size, args.pool, args.ost_per_rank, args.epochs, args.mode
    )


class _Shown:
    """What the progress shows: the bytes of all nodes where they are told, else those of this node, and says so."""

    def __init__(self, progress: Progress, topology: Topology) -> None:
        self._progress = progress
        self._total = self._done = 0
        self._tells_all = False
        if topology.num_nodes != 1:
            progress.note = "on this node"

    def expect(self, num_bytes: int) -> None:
        """Takes the bytes that this node lacks."""
        if not self._tells_all:
            self._begin(self._total + num_bytes)

    def here(self, num_bytes: int) -> None:
        """Takes the bytes written on this node."""
        if not self._tells_all:
            self._go_on(self._done + num_bytes)

    def everywhere(self, nodes: Sequence[NodeProgress]) -> None:
        """Takes how far all nodes have come."""
        self._tells_all = True
        total, left = sum(node.total_bytes for node in nodes), sum(node.left_bytes for node in nodes)
        slowest = max(nodes, key=lambda node: node.left_bytes)
        count = f"{len(nodes)} node{'s' * (len(nodes) > 1)}"
        self._progress.note = f"{count}, slowest {slowest.host} with {format_size(slowest.left_bytes)} left"
        self._begin(total)
        self._go_on(total - left)

    def _begin(self, total: int) -> None:
        if total != self._total:
            self._total = total
            self._progress.start(total)

    def _go_on(self, done: int) -> None:
        self._progress.advance(done - self._done, done - self._done)
        self._done = done


def _chosen_dest(args: argparse.Namespace, manifest: Manifest, topology: Topology) -> Path:
    """Returns the folder that is taken where the user names none, and says which."""
    from dlio.stage.destination import choose_dest

    dest, system = choose_dest(manifest, topology, strategy=args.strategy, copies=args.copies)
    say(args, f"staging to {dest}, on {system}")
    return dest


def _preview(args: argparse.Namespace, source: Source, dest: Path, topology: Topology) -> int:
    from dlio.stage.decide import preview

    shown = preview(
        source,
        dest,
        strategy=args.strategy,
        options=_options(args),
        topology=topology,
        allow_shared=args.allow_shared,
    )
    return print_report(args, shown.to_json())


def plan(args: argparse.Namespace) -> int:
    """Predicts what each strategy costs to stage DATASET on a machine that need not be there; rates in bytes a second.

    Rates that are not given are those of a middling cluster. The first line, or the key `chosen`, is what `auto` would
    take there.
    """
    from dlio.stage import model
    from dlio.stage.source import source_of

    manifest = source_of(args.dataset).manifest
    given = {name: getattr(args, f"{name}_rate") for name in ("source", "client", "network", "local")}
    rates = {name: rate for name, rate in given.items() if rate is not None}
    machine = model.Machine(args.nodes, args.local_free, **rates)
    largest = max((shard.num_bytes for shard in manifest.shards), default=0)
    chosen = model.choose(manifest.num_bytes, largest, machine, args.epochs)
    ways = model.all_ways(manifest.num_bytes, machine, args.copies)
    if args.osts:
        files = sum(len(shard.files) for shard in manifest.shards)
        striped = model.striped(manifest.num_bytes, files, machine, args.osts)
        ways = [striped if way.strategy == "stripe" else way for way in ways]
    if args.json:
        return print_report(args, {"chosen": asdict(chosen), "ways": [asdict(way) for way in ways]})
    say(args, f"auto takes {chosen.strategy}: {chosen.why}")
    for way in ways:
        say(
            args,
            f"{way.strategy:10} {way.seconds:10.2f} s  {format_size(way.bytes_per_node):>10} on each node  "
            f"{format_size(way.source_bytes):>10} read from the source{f': {way.why}' if way.why else ''}",
        )
    return EXIT_DONE


def clean(args: argparse.Namespace) -> int:
    """Ends this job's leases on staged data sets and removes those that no other job uses."""
    from dlio.stage.cache import clean as remove

    removed = remove(args.dest, job=args.job, keep=args.keep)
    if args.json:
        return print_report(args, {"removed": [str(path) for path in removed]})
    for path in removed:
        say(args, f"removed {path}")
    if not removed and not args.keep:
        say(args, _why_nothing(args.dest))
    return EXIT_DONE


def _why_nothing(dest: Path | None) -> str:
    """Returns why there was nothing to remove."""
    from dlio.stage.cache import copies

    if dest is None:
        return "removed nothing: no data set that nobody uses is staged in the folders of this node"
    kept = len(copies(dest))
    if kept:
        return f"removed nothing: {kept} in {dest / 'dlio'} are in use, or another user's"
    return f"removed nothing: no data set is staged in {dest}"
