"""The verb that tells what a packed data set holds: info."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from dlio.cli.options import add_verb, count, dataset_argument
from dlio.cli.output import describe, print_report, unmistakable
from dlio.dataset.manifest import Manifest
from dlio.io.sizes import format_size

SHOWN_CLASSES = 20


def add_verbs(verbs: Any) -> None:
    """Adds this verb to the command line."""
    tell = add_verb(verbs, info)
    dataset_argument(tell)
    tell.add_argument("--shuffle-window", type=count, metavar="W", help="score a shuffle that mixes W shards at a time")
    tell.add_argument("--batch-size", type=count, default=256, metavar="N", help="samples of a global batch (256)")


def info(args: argparse.Namespace) -> int:
    """Tells what the packed data set DATASET holds: samples, sizes, classes, and where it came from.

    With --shuffle-window, also how well a loader's window shuffle would mix it, beside the exact shuffle.
    """
    from dlio.pack.inspect.summary import summarise

    manifest = Manifest.load(args.dataset)
    origin = {name: value for name, value in manifest.origin.items() if name != "refused"}  # counted as skipped
    report = describe(manifest) | asdict(summarise(manifest))
    report |= {"class_names": list(manifest.class_names), "origin": origin, "path": str(args.dataset)}
    report |= _mixing(args, manifest)
    if not args.json:
        for name in ("sample_bytes", "shard_bytes"):
            report[name.replace("bytes", "sizes")] = {share: format_size(n) for share, n in report.pop(name).items()}
        counts = report.pop("class_counts")
        shown = [(unmistakable(name), counts.get(name)) for name in report.pop("class_names")]
        words = [name if number is None else f"{name}: {number}" for name, number in shown]
        hidden = [f"and {len(words) - SHOWN_CLASSES} more"] if len(words) > SHOWN_CLASSES else []
        report |= {"samples_a_class": ", ".join(words[:SHOWN_CLASSES] + hidden)} if words else {}
    return print_report(args, report)


def _mixing(args: argparse.Namespace, manifest: Manifest) -> dict[str, Any]:
    """Returns the scores of a window shuffle; 1 is as good as the exact one."""
    if args.shuffle_window is None:
        return {}
    import numpy as np

    from dlio.loaders.sampling.mixing import mixing_score
    from dlio.loaders.sampling.order import Window
    from dlio.pack.inspect.summary import class_counts

    window, sizes = Window(args.shuffle_window), np.array([shard.num_samples for shard in manifest.shards], np.int64)
    counts = class_counts(manifest)
    scores = {
        "by_class": None if counts is None else round(mixing_score(window, args.batch_size, sizes, counts), 4),
        "at_worst": round(mixing_score(window, args.batch_size, sizes), 4),
    }
    return {"mixing_score": {"shuffle_window": args.shuffle_window, "batch_size": args.batch_size, **scores}}
