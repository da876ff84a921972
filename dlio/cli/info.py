"""The verbs that say what a packed data set holds, and which of it a step of a run takes: info, order."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

import dlio
from dlio.cli.options import chosen, count, dataset_argument, known_values, local_path
from dlio.cli.output import print_report, say, unmistakable
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress
from dlio.dataset.remote import load
from dlio.errors import EXIT_DONE, UsageError
from dlio.io.sizes import format_size
from dlio.loaders.sampling.order import Shuffle, Window
from dlio.loaders.sampling.rank_share import End
from dlio.look import hub
from dlio.look.numbers import MOST_SAMPLES

SHOWN_CLASSES = 20
_ABOUT = ("name", "description", "license", "url", "published")
_SHUFFLES = {"yes": True, "no": False}


def add_verbs(verbs: Verbs) -> None:
    """Adds these verbs to the command line."""
    _add_order(verbs)
    verb = add_verb(verbs, info, "info packed", "info packed --stats --json")
    dataset_argument(verb)
    verb.add_argument("--shuffle-window", type=count, metavar="W", help="score a shuffle that mixes W shards at a time")
    verb.add_argument(
        "--batch-size",
        type=count,
        default=256,
        metavar="N",
        help="with --shuffle-window: samples of a global batch (256)",
    )
    about = "add mean and standard deviation of the channels, image sizes and class weights; saved next to the manifest"
    verb.add_argument("--stats", action="store_true", help=about)
    group = verb.add_argument_group("for a hub")
    about = "print the description for programs (Croissant, JSON-LD) instead; reads each file for its SHA-256"
    which = group.add_mutually_exclusive_group()
    which.add_argument("--croissant", action="store_true", help=about)
    which.add_argument("--card", action="store_true", help="print a data card for people, in Markdown, instead")
    group.add_argument("--name", default="", metavar="TEXT", help="the title (default: the folder's name)")
    group.add_argument("--description", default="", metavar="TEXT", help="a description of the samples")
    group.add_argument("--license", default="", metavar="TEXT", help="a URL, or an identifier such as CC-BY-4.0")
    group.add_argument("--url", default="", metavar="URL", help="the web page of the data set")
    group.add_argument("--published", default="", metavar="DATE", help="such as 2026-11-24")


def _add_order(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        order,
        "order packed --batch-size 256 --ranks 64 --seed 0 --epoch 3 --step 1200",
        "order packed --batch-size 256 --ranks 64 --state run.pt --json",
    )
    dataset_argument(verb)
    verb.add_argument("--batch-size", type=count, required=True, metavar="N", help="samples of one rank's batch")
    verb.add_argument("--ranks", type=count, default=1, metavar="N", help="processes of the run (1)")
    verb.add_argument("--rank", type=int, metavar="R", help="print this rank's batch only (default: of all, in order)")
    verb.add_argument("--step", type=int, metavar="N", help="print this step only, counted from 0 in its epoch")
    verb.add_argument("--epoch", type=int, metavar="N", help="the epoch, counted from 0 (default: the state's, or 0)")
    verb.add_argument("--seed", type=int, metavar="N", help="the loader's seed (default: the state's, or 0)")
    about = "a loader's state, as JSON or in a torch checkpoint: print the samples of the epoch that the run has used"
    verb.add_argument("--state", type=local_path, metavar="FILE", help=about)
    loader = verb.add_argument_group("options of the loader")
    known_values(
        loader,
        "--shuffle",
        [*_SHUFFLES],
        type=_shuffle,
        default=True,
        metavar="HOW",
        help="yes, no, or the number of shards of a window (yes)",
    )
    loader.add_argument(
        "--lanes", type=count, metavar="N", help="the number of lanes (default: 1, or the number of staged parts)"
    )
    ends = [str(end) for end in End]
    loader.add_argument("--end", choices=ends, default="pad", metavar="END", help=f"{', '.join(ends)} (pad)")


def info(args: argparse.Namespace) -> int:
    """Describes the packed data set DATASET: samples, sizes, classes and origin.

    With --shuffle-window, also scores how well a loader's window shuffle mixes it, compared with the exact shuffle.
    """
    if args.croissant or args.card:
        return _print_for_hub(args)
    if given := [name for name, text in chosen(args, *_ABOUT).items() if text]:
        raise UsageError(f"--{given[0]} is for a description: give --croissant or --card, too")
    options = chosen(args, "shuffle_window", "batch_size", "stats")
    with Progress("info", unit="samples", quiet=args.quiet or not args.stats) as progress:
        manifest = load(args.dataset)
        progress.start(min(manifest.num_samples, MOST_SAMPLES) if args.stats else 0)
        report = dlio.info(manifest, **options, progress=progress.advance)
    if not args.json:
        report |= _shown_stats(report.pop("stats", {}))
        for name in ("sample_bytes", "shard_bytes"):
            report[name.replace("bytes", "sizes")] = _percentiles(report.pop(name))
        for name in ("crop_ready", "decode_ready"):
            if not any(report[name].values()):
                del report[name]
        if not report["label_offset"]:
            del report["label_offset"]
        counts = report.pop("class_counts")
        shown = [(unmistakable(name), counts.get(name)) for name in report.pop("class_names") or counts]
        entries = [name if number is None else f"{name}: {number}" for name, number in shown]
        report |= {"samples_per_class": _some(entries)} if entries else {}
    return print_report(args, report)


def order(args: argparse.Namespace) -> int:
    """Prints the keys of the samples in any step of a run with DATASET, one per line.

    The keys are computed as the loaders compute them; no sample is read. --json adds epoch, step, rank and number.
    """
    names = ("batch_size", "step", "seed", "epoch", "ranks", "rank", "shuffle", "lanes", "end", "state")
    batches = dlio.order(args.dataset, **chosen(args, *names))
    if args.json:
        return print_report(args, {"batches": [asdict(batch) for batch in batches]})
    for batch in batches:
        for key in batch.keys:
            say(args, key)
    return EXIT_DONE


def _print_for_hub(args: argparse.Namespace) -> int:
    about = hub.About(**chosen(args, *_ABOUT))
    if not args.croissant:
        print(hub.card(args.dataset, about), end="")
        return EXIT_DONE
    with Progress("info", unit="bytes", quiet=args.quiet) as progress:
        manifest = load(args.dataset)
        progress.start(manifest.num_bytes)
        found = hub.croissant(manifest, about, lambda num_bytes: progress.advance(num_bytes, num_bytes))
    print(json.dumps(found, indent=2, ensure_ascii=False))
    return EXIT_DONE


def _some(entries: list[str]) -> str:
    hidden = [f"and {len(entries) - SHOWN_CLASSES} more"] if len(entries) > SHOWN_CLASSES else []
    return ", ".join(entries[:SHOWN_CLASSES] + hidden)


def _shown_stats(stats: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of --stats as text."""
    if not stats:
        return {}
    weights = [f"{unmistakable(name)}: {weight:.4g}" for name, weight in stats["class_weights"].items()]
    channels = {name: ", ".join(f"{value:.4f}" for value in stats[name] or ()) for name in ("mean", "std")}
    if not stats["images_decoded"]:
        channels = dict.fromkeys(
            channels, f"unknown: none of {stats['samples_read']:,} samples has an image that decodes"
        )
    return stats | channels | {"class_weights": _some(weights)}


def _percentiles(sizes: dict[str, int]) -> dict[str, str] | str:
    """Returns percentiles of sizes as text; one size if all are equal."""
    if len(set(sizes.values())) == 1:
        return f"{format_size(sizes['100%'])} each"
    return {share: format_size(number) for share, number in sizes.items()}


def _shuffle(text: str) -> Shuffle:
    if text in _SHUFFLES:
        return _SHUFFLES[text]
    if text.isdigit() and int(text):
        return Window(int(text))
    raise argparse.ArgumentTypeError(f"{text!r}: expected yes, no, or a number of shards >= 1")
