"""The verb that describes a packed data set: info."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import numpy as np

from dlio.cli.options import add_verb, count, dataset_argument
from dlio.cli.output import describe, print_report, unmistakable
from dlio.dataset.manifest import Manifest
from dlio.io.sizes import format_size
from dlio.loaders.sampling.mixing import mixing_score
from dlio.loaders.sampling.order import Window
from dlio.pack.inspect.summary import class_counts, summarise

SHOWN_CLASSES = 20


def add_verbs(verbs: Any) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(verbs, info)
    dataset_argument(verb)
    verb.add_argument("--shuffle-window", type=count, metavar="W", help="score a shuffle that mixes W shards at a time")
    verb.add_argument("--batch-size", type=count, default=256, metavar="N", help="samples of a global batch (256)")


def info(args: argparse.Namespace) -> int:
    """Describes the packed data set DATASET: samples, sizes, classes and origin.

    With --shuffle-window, also scores how well a loader's window shuffle mixes it, compared with the exact shuffle.
    """
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
    """Returns the scores of a window shuffle; 1 is as good as the exact shuffle."""
    if args.shuffle_window is None:
        return {}
    window, sizes = Window(args.shuffle_window), np.array([shard.num_samples for shard in manifest.shards], np.int64)
    counts = class_counts(manifest)
    scores = {
        "by_class": None if counts is None else round(mixing_score(window, args.batch_size, sizes, counts), 4),
        "at_worst": round(mixing_score(window, args.batch_size, sizes), 4),
    }
    return {"mixing_score": {"shuffle_window": args.shuffle_window, "batch_size": args.batch_size, **scores}}
