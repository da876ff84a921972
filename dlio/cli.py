"""The command `dlio`: each verb is a short function over the library function of its name."""

from __future__ import annotations

import argparse
import io
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlio import __version__, formats
from dlio.errors import EXIT_DONE, EXIT_SKIPPED, DlioError, StorageError, UsageError
from dlio.manifest import Manifest
from dlio.progress import Progress
from dlio.sizes import format_size, parse_size


def pack(args: argparse.Namespace) -> int:
    """Packs SRC, a folder of class folders or a list of images, into shards in the folder OUT.

    The same command run again goes on where the last one stopped.
    """
    import dlio
    from dlio.pack.run import make_plan
    from dlio.pack.sources import open_source

    source = open_source(args.src, name=args.source, root=args.root)
    what: dict[str, Any] = {"format": args.format, "label_offset": args.label_offset}
    if args.dry_run:
        sizes = {"shard_bytes": args.shard_size, "num_shards": args.num_shards}
        plan = make_plan(source, seed=args.shuffle, **what, **sizes)
        for shard in plan.shards:
            _say(args, f"{shard.name}  {len(shard.indices)} samples, {format_size(shard.num_bytes)}")
        return _report(args, _describe(plan.header) | {"shards": len(plan.shards), "samples": len(plan.listing)})
    with Progress("pack", unit="samples", quiet=args.quiet) as progress:
        manifest = dlio.pack(
            source,
            args.out,
            **what,
            shard_size=args.shard_size,
            num_shards=args.num_shards,
            shuffle=args.shuffle,
            on_error=args.on_error,
            overwrite=args.overwrite,
            workers=args.workers,
            engine=args.engine,
            started=progress.start,
            report=lambda shard: progress.advance(shard.num_samples + len(shard.skipped), shard.num_bytes),
        )
    for key, reason in manifest.skipped:
        print(f"dlio: skipped {key!r}: {reason}", file=sys.stderr)
    _report(args, _describe(manifest) | {"path": str(args.out)})
    return EXIT_SKIPPED if manifest.skipped else EXIT_DONE


def info(args: argparse.Namespace) -> int:
    """Tells what the packed data set DATASET holds."""
    manifest = Manifest.load(args.dataset)
    largest = max(manifest.shards, key=lambda shard: shard.num_bytes, default=None)
    report = _describe(manifest) | {
        "largest_shard_bytes": largest.num_bytes if largest else 0,
        "origin": dict(manifest.origin),
        "path": str(args.dataset),
    }
    if not args.json and manifest.class_names:
        names = ", ".join(manifest.class_names[:10])
        report["class_names"] = names + (", ..." if len(manifest.class_names) > 10 else "")
    return _report(args, report)


def verify(args: argparse.Namespace) -> int:
    """Checks every digest and every record of the packed data set DATASET; exits 1 where something is damaged."""
    from dlio.pack.verify import verify as check

    manifest = Manifest.load(args.dataset)
    with Progress("verify", unit="samples", quiet=args.quiet) as progress:
        progress.start(manifest.num_samples)
        damage = check(
            manifest,
            decode=args.decode,
            workers=args.workers,
            report=lambda shard: progress.advance(shard.num_samples, shard.num_bytes),
        )
    for item in damage:
        print(f"dlio: damaged: {item}", file=sys.stderr)
    _report(
        args,
        {
            "samples": manifest.num_samples,
            "bytes": manifest.num_bytes,
            "damaged": [asdict(item) for item in damage] if args.json else len(damage),
            "path": str(args.dataset),
        },
    )
    return EXIT_SKIPPED if damage else EXIT_DONE


def _describe(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": manifest.format,
        "schema": manifest.schema.types(),
        "samples": manifest.num_samples,
        "bytes": manifest.num_bytes,
        "shards": len(manifest.shards),
        "classes": len(manifest.class_names),
        "skipped": len(manifest.skipped),
        "content_id": manifest.content_id,
    }


def _say(args: argparse.Namespace, line: str) -> None:
    if not (args.quiet or args.json):
        print(line)


def _report(args: argparse.Namespace, report: dict[str, Any]) -> int:
    """Prints a report: one JSON object with --json, else a line for each entry; returns the exit code for success."""
    if args.json:
        print(json.dumps(report))
    for name, value in report.items():
        shown = f"{value:,} ({format_size(value)})" if name.endswith("bytes") else value
        _say(args, f"{name.replace('_', ' '):20} {_line(shown)}")
    return EXIT_DONE


def _line(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items() if item is not None)
    return str(value)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    top = argparse.ArgumentParser(prog="dlio", description="Pack, stage and feed small-image data sets.")
    top.add_argument("--version", action="version", version=f"dlio {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)
    _pack_options(_verb(verbs, pack))
    _dataset_argument(_verb(verbs, info))
    check = _verb(verbs, verify)
    _dataset_argument(check)
    check.add_argument("--decode", action="store_true", help="decode every image too")
    _workers_option(check)
    return top


def _verb(verbs: Any, function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    text = (function.__doc__ or "").strip()
    first, _, rest = text.partition("\n")
    verb: argparse.ArgumentParser = verbs.add_parser(function.__name__, help=first, description=f"{first} {rest}")
    verb.set_defaults(function=function)
    verb.add_argument("--json", action="store_true", help="print the report as one JSON object")
    verb.add_argument("--quiet", action="store_true", help="print errors only")
    return verb


def _pack_options(verb: argparse.ArgumentParser) -> None:
    from dlio.executors import ENGINES
    from dlio.pack.plan import DEFAULT_SHARD_BYTES
    from dlio.pack.sources import names

    verb.add_argument("src", metavar="SRC", type=Path, help="a folder of class folders, or a list of images")
    verb.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    verb.add_argument("--format", required=True, help=f"{', '.join(formats.names())}, or a module's dotted path")
    verb.add_argument("--source", default="auto", choices=["auto", *names()], help="the kind of SRC (default: auto)")
    verb.add_argument("--root", type=Path, help="the folder that a list's paths start from (default: the list's)")
    size = verb.add_mutually_exclusive_group()
    size.add_argument(
        "--shard-size",
        type=_size,
        default=DEFAULT_SHARD_BYTES,
        metavar="SIZE",
        help="the size of a shard to aim at (default: 256MiB)",
    )
    size.add_argument("--num-shards", type=int, metavar="N", help="the number of shards")
    _workers_option(verb)
    verb.add_argument("--engine", default="processes", choices=sorted(ENGINES), help="what runs the workers")
    verb.add_argument("--shuffle", type=int, metavar="SEED", help="shuffle the samples by this seed")
    verb.add_argument("--label-offset", type=int, default=0, metavar="N", help="add N to every class index")
    verb.add_argument(
        "--on-error",
        default="raise",
        choices=["raise", "skip"],
        help="what to do with a bad sample; skipped ones are listed in the manifest, and the exit code is 1",
    )
    verb.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    verb.add_argument("--overwrite", action="store_true", help="replace another data set in OUT")


def _dataset_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("dataset", metavar="DATASET", type=Path, help="the folder that holds manifest.jsonl")


def _workers_option(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--workers", type=_count, metavar="N", help="processes to use (default: one a core)")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers: expected 1 or more")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors are one line on stderr."""
    args = parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for paths that are no UTF-8
    logging.basicConfig(format="dlio: %(message)s", level=logging.WARNING)
    try:
        code: int = args.function(args)
    except DlioError as error:
        print(f"dlio: {_message(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return EXIT_DONE
    except OSError as error:
        print(f"dlio: {error.filename}: {error.strerror}", file=sys.stderr)
        return StorageError.exit_code
    except KeyboardInterrupt:
        print("dlio: interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return code


def _message(error: DlioError) -> str:
    """Returns the message without the number that the system's errors carry."""
    strerror = getattr(error, "strerror", None)
    return str(strerror or error)
