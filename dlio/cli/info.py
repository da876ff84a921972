"""The verb that describes a packed data set: info."""

from __future__ import annotations

import argparse
from typing import Any

import dlio
from dlio.cli.options import chosen, count, dataset_argument
from dlio.cli.output import print_report, unmistakable
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress
from dlio.dataset.remote import load
from dlio.io.sizes import format_size
from dlio.look.numbers import MOST_SAMPLES

SHOWN_CLASSES = 20


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(verbs, info, "info packed", "info packed --stats --json", page="how-to/look.md")
    dataset_argument(verb)
    verb.add_argument("--shuffle-window", type=count, metavar="W", help="score a shuffle that mixes W shards at a time")
    verb.add_argument(
        "--batch-size",
        type=count,
        default=256,
        metavar="N",
        help="with --shuffle-window: samples of a global batch (256)",
    )
    about = "add mean and standard deviation of the channels, image sizes and class weights; kept beside the manifest"
    verb.add_argument("--stats", action="store_true", help=about)


def info(args: argparse.Namespace) -> int:
    """Describes the packed data set DATASET: samples, sizes, classes and origin.

    With --shuffle-window, also scores how well a loader's window shuffle mixes it, compared with the exact shuffle.
    """
    options = chosen(args, "shuffle_window", "batch_size", "stats")
    with Progress("info", unit="samples", quiet=args.quiet or not args.stats) as progress:
        manifest = load(args.dataset)
        progress.start(min(manifest.num_samples, MOST_SAMPLES) if args.stats else 0)
        report = dlio.info(manifest, **options, progress=progress.advance)
    if not args.json:
        report |= _shown_stats(report.pop("stats", {}))
        for name in ("sample_bytes", "shard_bytes"):
            report[name.replace("bytes", "sizes")] = _spread(report.pop(name))
        for name in ("crop_ready", "decode_ready"):
            if not any(report[name].values()):
                del report[name]
        counts = report.pop("class_counts")
        shown = [(unmistakable(name), counts.get(name)) for name in report.pop("class_names") or counts]
        words = [name if number is None else f"{name}: {number}" for name, number in shown]
        report |= {"samples_a_class": _some(words)} if words else {}
    return print_report(args, report)


def _some(words: list[str]) -> str:
    hidden = [f"and {len(words) - SHOWN_CLASSES} more"] if len(words) > SHOWN_CLASSES else []
    return ", ".join(words[:SHOWN_CLASSES] + hidden)


def _shown_stats(stats: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of --stats in words."""
    if not stats:
        return {}
    weights = [f"{unmistakable(name)}: {weight:.4g}" for name, weight in stats["class_weights"].items()]
    channels = {name: ", ".join(f"{value:.4f}" for value in stats[name] or ()) for name in ("mean", "std")}
    if not stats["images_decoded"]:
        channels = dict.fromkeys(
            channels, f"unknown: none of {stats['samples_read']:,} samples has an image that decodes"
        )
    return stats | channels | {"class_weights": _some(weights)}


def _spread(sizes: dict[str, int]) -> dict[str, str] | str:
    """Returns percentiles of sizes in words; one size if all are equal."""
    if len(set(sizes.values())) == 1:
        return f"{format_size(sizes['100%'])} each"
    return {share: format_size(number) for share, number in sizes.items()}
