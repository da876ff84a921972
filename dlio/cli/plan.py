"""The verb that predicts what staging costs: plan."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

import dlio
from dlio.cli.options import OF_ANYTHING, chosen, count, dataset_argument, local_path, size
from dlio.cli.output import print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.stage import choice_options
from dlio.errors import EXIT_DONE
from dlio.io.sizes import counted, format_seconds, format_size

if TYPE_CHECKING:
    from dlio.stage.planning.simulation import Simulation


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(
        verbs,
        plan,
        "plan packed --nodes 64",
        "plan packed --nodes 64 --simulate --timeline staging.svg",
    )
    dataset_argument(verb, OF_ANYTHING)
    choice_options(verb, "also show this strategy")
    cluster = verb.add_argument_group("the cluster")
    cluster.add_argument("--nodes", type=count, required=True, metavar="N", help="nodes of the job")
    cluster.add_argument(
        "--local-free", type=size, metavar="SIZE", help="room on each node (default: the machine's, or 1TiB)"
    )
    cluster.add_argument("--source-rate", type=size, metavar="SIZE", help="from the source to all nodes, per second")
    cluster.add_argument("--client-rate", type=size, metavar="SIZE", help="from the source to one node, per second")
    cluster.add_argument("--network-rate", type=size, metavar="SIZE", help="from one node to another, per second")
    cluster.add_argument("--local-rate", type=size, metavar="SIZE", help="from one node to its storage, per second")
    cluster.add_argument("--osts", type=count, metavar="N", help="the number of storage targets (default: no limit)")
    simulated = verb.add_argument_group("simulation")
    simulated.add_argument(
        "--simulate", action="store_true", help="also simulate one strategy: --strategy, or the choice of auto"
    )
    simulated.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the seed of simulated stragglers and failures (0)"
    )
    simulated.add_argument(
        "--timeline", type=local_path, metavar="SVG", help="with --simulate: draw the run into this file"
    )


def plan(args: argparse.Namespace) -> int:
    """Predicts what each strategy costs to stage DATASET on a described cluster, with rates in bytes per second.

    Rates that you do not give come from --machine, else from `dlio bench`, else from a typical cluster. The first line,
    or the key `chosen`, is the choice of `auto` on that cluster.
    """
    rates = ("source_rate", "client_rate", "network_rate", "local_rate")
    names = ("nodes", "local_free", "osts", "copies", "epochs", "strategy", "machine", "simulate", "seed", "timeline")
    found = dlio.plan(args.dataset, **chosen(args, *rates, *names))
    if args.json:
        return print_report(args, asdict(found))
    say(args, f"auto chooses {found.chosen.strategy}: {found.chosen.why}")
    for way in found.ways:
        say(
            args,
            f"{way.strategy:10} {format_seconds(way.seconds):>16}  {format_size(way.bytes_per_node):>10} on each node  "
            f"{format_size(way.source_bytes):>10} read from the source: {way.why}",
        )
    for live in found.live:
        say(
            args,
            f"in the background, {live.strategy}: {format_seconds(live.first_batch_seconds)} to the first batch, "
            f"{format_seconds(live.first_epoch_seconds)} for the first epoch, "
            f"{format_seconds(live.later_epoch_seconds)} for later ones; "
            f"a node receives {format_size(live.first_network_bytes)} from others, "
            f"then {format_size(live.later_network_bytes)} an epoch",
        )
    if found.simulated is not None:
        _say_simulated(args, found.simulated)
    return EXIT_DONE


def _say_simulated(args: argparse.Namespace, found: Simulation) -> None:
    ends = ", ".join(f"{format_seconds(seconds)} for {percent}%" for percent, seconds in found.percentiles.items())
    say(
        args,
        f"simulated, {found.strategy}: {ends} of the nodes; {found.busiest} is busiest, "
        f"{counted(found.failures, 'node failure')}",
    )
    moved = ", ".join(f"{format_size(num_bytes)} {name}" for name, num_bytes in found.num_bytes.items())
    work = ", ".join(f"{share:.0%} {name}" for name, share in found.busy.items())
    say(args, f"  moved: {moved}; {counted(found.opens, 'file')} opened at the source; busy: {work}")
