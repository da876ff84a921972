"""The verbs that bring packed data sets to the nodes and clear them away: stage, clean."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlio.cli.options import add_verb, dataset_argument
from dlio.cli.output import print_report, say
from dlio.errors import EXIT_DONE
from dlio.manifest import Manifest
from dlio.progress import Progress
from dlio.sizes import format_size


def add_verbs(verbs: Any) -> None:
    """Adds these verbs to the command line."""
    from dlio.stage.run import strategy_names

    bring = add_verb(verbs, stage)
    dataset_argument(bring)
    bring.add_argument("dest", metavar="DEST", type=Path, help="a folder on node-local storage")
    bring.add_argument("--strategy", default="replicate", choices=strategy_names(), help="who copies what")
    bring.add_argument("--allow-shared", action="store_true", help="take a DEST that other machines see too")
    sweep = add_verb(verbs, clean)
    sweep.add_argument("dest", metavar="DEST", nargs="?", type=Path, help="as given to stage (default: where it looks)")
    sweep.add_argument("--job", metavar="ID", help="the scheduler's job id (default: this job's)")
    sweep.add_argument("--keep", action="store_true", help="end the leases only, and leave the copies for the next job")


def stage(args: argparse.Namespace) -> int:
    """Brings the packed data set DATASET to DEST, on each node once; every process of a job may call it.

    A copy that is there already is found again at once. The last line printed is the folder of the staged data set.
    """
    from dlio.stage.run import run
    from dlio.topology import Topology

    topology = Topology.from_env()
    manifest = Manifest.load(args.dataset)
    quiet = args.quiet or topology.rank != 0
    with Progress("stage", unit="bytes", quiet=quiet) as progress:
        progress.start(manifest.num_bytes)
        staged, summary = run(
            manifest,
            args.dest,
            strategy=args.strategy,
            topology=topology,
            allow_shared=args.allow_shared,
            report=lambda num_bytes: progress.advance(num_bytes, num_bytes),
        )
    if args.json:
        return print_report(args, asdict(summary))
    rate = format_size(summary.copied_bytes / max(summary.seconds, 1e-9))
    say(
        args,
        f"{summary.node}: {manifest.num_samples} samples in {len(manifest.shards)} shards, "
        f"{format_size(summary.copied_bytes)} copied in {summary.seconds:.2f} s, {rate}/s ({summary.strategy})",
    )
    say(args, str(staged.root))
    return EXIT_DONE


def clean(args: argparse.Namespace) -> int:
    """Ends this job's leases on staged data sets and removes those that no other job uses."""
    from dlio.stage.cache import clean as remove

    removed = remove(args.dest, job=args.job, keep=args.keep)
    if args.json:
        return print_report(args, {"removed": [str(path) for path in removed]})
    for path in removed:
        say(args, f"removed {path}")
    return EXIT_DONE
