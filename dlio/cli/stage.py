"""The verb that stages data sets, files and folders on the nodes: stage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from dlio.cli.options import OF_ANYTHING, count, dataset_argument, known_values, local_path, octal, size
from dlio.cli.output import complain, print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress, terminable
from dlio.cluster import mpi
from dlio.cluster.topology import Topology
from dlio.dataset.location import TREE
from dlio.dataset.manifest import Manifest
from dlio.dataset.tree import num_files
from dlio.errors import EXIT_DONE, ManifestError, StorageError, UsageError
from dlio.io.arrivals import NoRoomError
from dlio.io.filesystems import FileSystem
from dlio.io.sizes import counted, format_seconds, format_size
from dlio.rights.as_owner import switch_to_job_user
from dlio.stage import strategies
from dlio.stage.client.status import answer, copies, in_one_word, in_words, status, status_from
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.meeting.listing import by_nodes
from dlio.stage.meeting.peer import Peer
from dlio.stage.planning.job import Asked, Listeners, Options
from dlio.stage.run import StageSummary, preview, run
from dlio.stage.sources import StagingSource
from dlio.stage.sources.anything import anything
from dlio.urls import shown


def add_verbs(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    _stage_options(
        add_verb(
            verbs,
            stage,
            "stage packed /local",
            "stage https://example.org/env.sqsh /local",
            "stage packed --background",
            "stage packed /lustre/scratch --strategy stripe --stripe-count 8",
        )
    )


def _stage_options(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(resumes=True)
    dataset_argument(verb, OF_ANYTHING)
    where = "a folder on node-local storage; for --strategy stripe on Lustre (default: the first local one with room)"
    verb.add_argument("dest", metavar="DEST", nargs="?", type=local_path, help=where)
    verb.add_argument("--allow-shared", action="store_true", help="accept a DEST that other machines can see")
    modes = "permissions of the staged files, such as 644 (default: those of the source; 600 for a URL)"
    verb.add_argument("--mode", type=octal, metavar="MODE", help=modes)
    choice_options(verb, "which node copies what")
    aside = verb.add_argument_group("staging in the background")
    how = aside.add_mutually_exclusive_group()
    how.add_argument("--background", action="store_true", help="start the agent of this node, and return")
    how.add_argument("--status", action="store_true", help="print the progress of the copy")
    how.add_argument("--wait", action="store_true", help="wait until the copy is complete")
    how.add_argument(
        "--dry-run", action="store_true", help="print the chosen strategy and the reason, and write nothing"
    )
    kept = "with --background: keep at most SIZE of the shards on this node, and the small files that open the others"
    aside.add_argument("--cache-size", type=size, metavar="SIZE", help=kept)
    lustre = verb.add_argument_group("stripes on Lustre")
    lustre.add_argument("--stripe-count", type=count, default=0, metavar="N", help="storage targets of each file")
    lustre.add_argument("--stripe-size", type=size, default=0, metavar="SIZE", help="the stripe size")
    lustre.add_argument("--pool", default="", metavar="POOL", help="the pool of storage targets")
    lustre.add_argument("--ost-per-rank", action="store_true", help="put file k on storage target k")


def choice_options(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Adds --strategy, --copies, --epochs and --machine."""
    verb = parser.add_argument_group("strategy")
    known = [strategies.AUTO, *strategies.names()]
    about = f"{purpose}: {', '.join(known)}, or a module's dotted path"
    known_values(verb, "--strategy", known, default=strategies.AUTO, metavar="NAME", help=about)
    verb.add_argument(
        "--copies", type=count, default=1, metavar="R", help="partition: how many nodes hold each shard (1)"
    )
    epochs = "the planned number of epochs: auto stages in parts if a whole copy takes longer than it saves"
    verb.add_argument("--epochs", type=count, default=0, metavar="E", help=epochs)
    machine = "a file that describes the machine, or the name of an included file (default: the rates of dlio bench)"
    verb.add_argument("--machine", default="", metavar="FILE", help=machine)


def stage(args: argparse.Namespace) -> int:
    """Copies a data set, or any file or folder, to DEST, once per node; every process of a job may call it.

    Container images, environments, weights and other files and folders keep their modes, times and links. If a complete
    copy exists, it is found at once. The last line printed is the path of the copy. With --json, one process per node
    prints an object: the first, or another one that had to copy instead.
    """
    if args.cache_size is not None and not args.background:
        raise UsageError("--cache-size needs --background: without it, dlio copies the whole part of a node")
    if args.status or args.background:
        return _status(args) if args.status else _begin(args)
    topology, options = Topology.from_env(), _options(args)
    if args.wait:
        args.dataset, options = _under_way(args, topology, options)
    needs = strategies.needs_of(args.strategy)
    watch = not args.quiet and not args.dry_run
    agrees = needs is None or (needs.exchange and not args.dry_run)
    with mpi.ending_early(topology) if agrees else nullcontext():
        return _stage(args, topology, options, watch=watch)


def _begin(args: argparse.Namespace) -> int:
    """Starts the agent of this node, and prints the folder that it fills; the source while there is no room for one."""
    from dlio.stage.client.start import ensure_agent  # loaded here: a copy needs it not

    switch_to_job_user()
    with by_nodes(Topology.from_env()) as list_once:
        source, said = anything(args.dataset, list_once), Listeners(partial(_say_dest, args))
        asked: Asked = {"strategy": args.strategy, "options": _options(args), "listeners": said}
        try:
            folder = ensure_agent(args.dataset, args.dest, source=source, cache_bytes=args.cache_size, **asked)
            path = str(replace(source.manifest, root=folder.path).path)
        except NoRoomError as error:  # no reason for a job to fail
            complain(error.text)
            path = str(source)
    if args.json:
        return print_report(args, {"path": path})
    say(args, path)
    return EXIT_DONE


def _found(args: argparse.Namespace) -> list[dict[str, Any]]:
    try:
        manifest = anything(args.dataset).manifest
        found = status(manifest.content_id, args.dest)
        return [copy | {"path": str(replace(manifest, root=Path(copy["path"])).path)} for copy in found]
    except (ManifestError, StorageError):
        if found := status_from(args.dataset, args.dest):  # the copies name their source, which was removed
            return found
        raise


def _under_way(args: argparse.Namespace, topology: Topology, options: Options) -> tuple[StagingSource, Options]:
    """Returns the source and the options of the copy that an agent fills, or has filled, and takes its strategy.

    Options that the user has given stay.

    Raises:
        StorageError: this node has no copy that is complete or being filled.
    """
    from dlio.stage.client.start import Task

    with by_nodes(topology) as list_once:
        source = anything(args.dataset, list_once)
    found = [copy for copy in copies(source.manifest.content_id, args.dest) if copy.has_manifest() or answer(copy)]
    if not found:
        raise StorageError(
            f"{shown(str(args.dataset))} is not being staged on this node: run dlio stage --background first"
        )
    if args.strategy == strategies.AUTO and (task := Task.of(LiveFolder(found[0]))):
        args.dest, args.strategy, options = task.dest, task.strategy, options.over(task.options)
        sys.path += task.modules  # where its starter found the strategy
    return source, options


def _status(args: argparse.Namespace) -> int:
    """Prints how far each copy of a data set on this node is, and the other nodes that fill it."""
    found = _found(args)
    if args.json:
        return print_report(args, {"copies": found})
    for copy in found:
        say(args, f"{copy['path']}: {in_one_word(copy)}")
        for node in copy.get("nodes", ()):
            say(args, f"  node {node['node']} ({node['host']}): {in_words(node)}")
    if not found:
        say(args, f"{shown(str(args.dataset))} is neither staged nor being staged on this node")
        for copy in status_from(args.dataset, args.dest):
            say(args, f"{copy['path']} is a copy of an earlier state of it: stage it again")
    return EXIT_DONE


def _stage(args: argparse.Namespace, topology: Topology, options: Options, *, watch: bool) -> int:
    """Does the work of `stage` once all processes have started."""
    said = Listeners(partial(_say_dest, args))
    asked: Asked = {"strategy": args.strategy, "topology": topology, "options": options, "listeners": said}
    if args.dry_run:
        report = preview(args.dataset, args.dest, **asked).to_json()
        if args.json:
            return print_report(args, report)
        if report.pop("is_dataset") and report["pays_after_epochs"] is None:
            report["pays_after_epochs"] = "never: reading in place is as fast"
        report["seconds"] = format_seconds(report["seconds"])
        return print_report(args, {name: value for name, value in report.items() if value not in ("", None)})
    quiet = args.quiet or topology.rank != 0
    with terminable(), Progress("stage", unit="bytes", quiet=quiet) as progress:
        shown = _Shown(progress, topology)
        asked["listeners"] = Listeners(said.chosen, shown.expect, shown.here, shown.everywhere if watch else None)
        staged, summary = run(args.dataset, args.dest, **asked)
    if args.json:
        leads = not topology.local_rank or summary.copied_bytes > 0
        return print_report(args, asdict(summary)) if leads else EXIT_DONE
    say(args, _in_one_line(summary, staged))
    say(args, str(staged.path))
    return EXIT_DONE


def _say_dest(args: argparse.Namespace, dest: Path, system: FileSystem) -> None:
    say(args, f"staging to {dest}, on {system}")


def _in_one_line(summary: StageSummary, staged: Manifest) -> str:
    copied, seconds = summary.copied_bytes, format_seconds(summary.seconds)
    samples = f"{counted(staged.num_samples, 'sample')} in {counted(len(staged.shards), 'shard')}"
    held = counted(num_files(staged), "file") if staged.format == TREE else samples
    done = f"waited {seconds} for the process that copied it" if summary.has_waited else "already here"
    if copied:
        by = f"{summary.strategy}, by the rates of {summary.rates}" if summary.rates else summary.strategy
        done = f"{format_size(copied)} copied in {seconds}, {format_size(copied / max(summary.seconds, 1e-9))}/s ({by})"
    return f"{summary.node}: {held}, {done}"


def _options(args: argparse.Namespace) -> Options:
    return Options(
        args.copies, args.stripe_count, args.stripe_size, args.pool, args.ost_per_rank, args.epochs, args.mode,
        args.allow_shared, args.machine,
    )  # fmt: skip


class _Shown:
    """Shows the progress of all nodes once it is known; until then that of this node, labelled so."""

    def __init__(self, progress: Progress, topology: Topology) -> None:
        self._progress = progress
        self._total = self._done = 0
        self._knows_all = False
        if topology.num_nodes != 1:
            progress.note = "on this node"

    def expect(self, num_bytes: int) -> None:
        """Counts bytes that this node lacks."""
        if not self._knows_all:
            self._begin(self._total + num_bytes)

    def here(self, num_bytes: int) -> None:
        """Counts bytes written on this node."""
        if not self._knows_all:
            self._go_on(self._done + num_bytes)

    def everywhere(self, nodes: Sequence[Peer]) -> None:
        """Shows the progress of all nodes."""
        self._knows_all = True
        total, left = sum(node.lacked for node in nodes), sum(node.lacks for node in nodes)
        slowest = max(nodes, key=lambda node: node.lacks)
        last = f"slowest {slowest.owner.host} with {format_size(slowest.lacks)} left"
        self._progress.note = f"{counted(len(nodes), 'node')}, {last}"
        self._begin(total)
        self._go_on(total - left)

    def _begin(self, total: int) -> None:
        if total != self._total:
            self._total = total
            self._progress.start(total)

    def _go_on(self, done: int) -> None:
        self._progress.advance(done - self._done, done - self._done)
        self._done = done
