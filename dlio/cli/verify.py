"""The verb that tells whether packed data are what was packed, and mends staged copies: verify."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.cli.options import add_verb, size, workers_option
from dlio.cli.output import complain, print_report, say
from dlio.cli.progress import Progress
from dlio.cli.terminable import terminable
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import EXIT_DONE, EXIT_SKIPPED, UsageError
from dlio.io.sizes import format_size

if TYPE_CHECKING:
    from dlio.pack.inspect.verify import Damage
    from dlio.stage.cache.folder import StagedFolder
    from dlio.stage.cache.scrub import Scrubbed


def add_verbs(verbs: Any) -> None:
    """Adds this verb to the command line."""
    check = add_verb(verbs, verify)
    what = "the folder that holds manifest.jsonl; with --staged the DEST given to stage (default: where clean looks)"
    check.add_argument("dataset", metavar="DATASET", nargs="?", type=Path, help=what)
    check.add_argument("--decode", action="store_true", help="decode every image too")
    check.add_argument(
        "--repair", action="store_true", help="bring damaged files of a staged copy anew from its source"
    )
    origin = "repair from this folder or URL (default: what the copy was staged from)"
    check.add_argument("--from", dest="source", metavar="SOURCE", help=origin)
    check.add_argument(
        "--staged", action="store_true", help="check all staged copies of yours, or for root of everybody"
    )
    rate = "with --staged: read at most so many bytes a second"
    check.add_argument("--max-rate", dest="max_rate", type=_rate, metavar="SIZE", help=rate)
    workers_option(check)


def _rate(text: str) -> int:
    number = size(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: expected a size from 1")
    return number


def verify(args: argparse.Namespace) -> int:
    """Checks every digest and every record of the packed data set DATASET; exits 1 where something is damaged.

    Of a data set staged in parts, what lies on this node is checked. With --repair the digests of a staged copy
    are checked, damaged and missing files are brought anew from its source, and the exit code is 0 if nothing is left
    damaged. With --staged the digests of all complete copies of a node are checked, at idle priority, past the page
    cache, and without making a copy look used; for cron:
    0 3 * * 0 dlio verify --staged /local --repair --max-rate 100M --quiet
    """
    _check_options(args)
    if args.staged:
        return _scrub(args)
    return _repair(args) if args.repair else _verify(args)


def _check_options(args: argparse.Namespace) -> None:
    """Refuses options that do not go together.

    Raises:
        UsageError: these do not.
    """
    if args.dataset is None and not args.staged:
        raise UsageError("DATASET is missing: give the folder that holds manifest.jsonl, or --staged for all copies")
    if args.source is not None and (args.staged or not args.repair):
        raise UsageError("--from names the source of one copy for --repair, without --staged")
    if args.max_rate is not None and not args.staged:
        raise UsageError("--max-rate is for --staged")
    if (args.staged or args.repair) and (args.decode or args.workers):
        raise UsageError("--staged and --repair check digests, in one process: leave out --decode and --workers")


def _verify(args: argparse.Namespace) -> int:
    from dlio.pack.inspect.verify import verify as check
    from dlio.stage.cache.repair import staged_copy

    manifest = Manifest.load(args.dataset)
    shards = manifest.shards_here
    num_samples = sum(shard.num_samples for shard in shards)
    damage = _strange_manifest(staged_copy(args.dataset))
    with Progress("verify", unit="samples", quiet=args.quiet) as progress:
        progress.start(num_samples, len(shards))
        damage += check(
            manifest,
            decode=args.decode,
            workers=args.workers,
            report=lambda shard: progress.advance(shard.num_samples, shard.num_bytes, 1),
        )
    for item in damage:
        complain(f"damaged: {item}")
    print_report(
        args,
        {
            "samples": num_samples,
            "bytes": sum(shard.num_bytes for shard in shards),
            **_part(manifest),
            "damaged": [asdict(item) for item in damage] if args.json else len(damage),
            "path": str(args.dataset),
        },
    )
    return EXIT_SKIPPED if damage else EXIT_DONE


def _part(manifest: Manifest) -> dict[str, str]:
    """Returns what a report says of a data set of which only a part is here."""
    if manifest.node is None:
        return {}
    return {"part": f"node {manifest.node}'s, {len(manifest.shards_here)} of {len(manifest.shards)} shards"}


def _strange_manifest(folder: StagedFolder | None) -> list[Damage]:
    """Returns what is wrong with the manifest of a staged copy, though it can be read."""
    from dlio.errors import ManifestError
    from dlio.pack.inspect.verify import Damage
    from dlio.stage.cache.repair import manifest_at_rest

    if folder is None:
        return []
    try:
        manifest_at_rest(folder)
    except ManifestError as error:
        return [Damage("", str(folder.path / NAME), error.text)]
    return []


def _repair(args: argparse.Namespace) -> int:
    from dlio.stage.cache.repair import staged_copy
    from dlio.stage.cache.scrub import check_copy

    folder = staged_copy(args.dataset)
    if folder is None:
        raise UsageError(
            f"{args.dataset} is no staged copy (DEST/dlio/<content id>), which is all that --repair can mend: "
            "bring its damaged files back from a backup, or pack it anew"
        )
    if not folder.has_manifest():
        raise UsageError(f"{folder.path} is not complete: run dlio stage once more")
    with terminable():
        copy = check_copy(folder, mend=True, source=args.source)
    _tell(args, copy)
    if args.json:
        print_report(args, asdict(copy))
    return EXIT_DONE if copy.is_whole else EXIT_SKIPPED


def _scrub(args: argparse.Namespace) -> int:
    from dlio.stage.cache.idle import step_back
    from dlio.stage.cache.scrub import scrub

    step_back()
    found = []
    with terminable():
        for copy in scrub(args.dataset, mend=args.repair, max_rate=args.max_rate):
            found.append(copy)
            _tell(args, copy)
    if args.json:
        print_report(args, {"copies": [asdict(copy) for copy in found]})
    elif not found:
        say(args, "checked nothing: no complete copy of yours is staged there")
    return EXIT_DONE if all(copy.is_whole for copy in found) else EXIT_SKIPPED


def _tell(args: argparse.Namespace, copy: Scrubbed) -> None:
    """Prints a line on a copy; and on stderr one for each damage, and one for what could not be done."""
    for name, damage in copy.damaged.items():
        complain(f"damaged: {copy.path}/{name}: {damage}")
    for name, reason in copy.not_repaired.items():
        if reason:
            complain(f"not repaired: {copy.path}/{name}: {reason}")
    if copy.problem:
        complain(f"{'not repaired' if copy.damaged else 'not checked'}: {copy.path}: {copy.problem}")
    if copy.files:
        state = f"{len(copy.damaged)} damaged, {len(copy.repaired)} repaired" if copy.damaged else "whole"
        say(args, f"{copy.path}: {copy.files} files, {format_size(copy.bytes)}, {state}")
