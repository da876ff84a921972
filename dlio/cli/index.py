"""The verb that makes files a data set where they lie, images or shards of other tools: index."""

from __future__ import annotations

import argparse
import json

import dlio
from dlio.cli.options import chosen, known_values, local_path, name_and_value, workers_option
from dlio.cli.output import complain, print_report
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress
from dlio.dataset.schema import Schema
from dlio.errors import EXIT_DONE, EXIT_SKIPPED, DlioError
from dlio.pack import sources
from dlio.pack.index import names
from dlio.pack.inspect.summary import describe
from dlio.pack.listing.base import Source
from dlio.pack.shard_progress import watching

_SCHEMA = """'{"image": "bytes", "label": "int64"}'"""


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(
        verbs,
        index,
        "index photos",
        "index labels.csv -o /scratch/labels-index --checksums",
        "index shards --format tfrecord --match 'train-*' --label-offset 1",
    )
    about = (
        "a folder of class folders, or a list of images; with --format, the folder of the shards, or of links to them"
    )
    verb.add_argument("path", metavar="PATH", type=local_path, help=about)
    workers_option(verb)
    verb.add_argument("--overwrite", action="store_true", help="index again, and replace the index")
    _image_options(verb)
    shards = verb.add_argument_group("shards of another tool")
    about = f"{', '.join(names())}, or a module's dotted path"
    known_values(shards, "--format", names(), metavar="FORMAT", help=about)
    shards.add_argument("--match", metavar="PATTERN", help="use only names that match, such as 'train-*'")
    shards.add_argument(
        "--schema",
        type=_schema,
        metavar="JSON",
        help=f"what the records hold, such as {_SCHEMA} (default: from the first records)",
    )
    shards.add_argument(
        "--label-offset",
        type=int,
        default=0,
        metavar="N",
        help="the number that the shards add to class indices (ImageNet: 1)",
    )


def _image_options(verb: argparse.ArgumentParser) -> None:
    images = verb.add_argument_group("images")
    images.add_argument("-o", "--out", type=local_path, metavar="OUT", help="the folder to write (default: PATH-index)")
    about = "read each file once to store its checksum; dlio stage needs checksums"
    images.add_argument("--checksums", action="store_true", help=about)
    about = "raise (default), or skip missing files and bad entries, and list them in the manifest"
    images.add_argument("--on-error", choices=("raise", "skip"), default="raise", metavar="HOW", help=about)
    kinds = sources.names()
    known_values(
        images,
        "--source",
        ["auto", *kinds],
        default="auto",
        metavar="SOURCE",
        help=f"auto (default), {', '.join(kinds)}",
    )
    about = "an option of the source, such as split=train; may be repeated"
    images.add_argument("--option", type=name_and_value, action="append", default=[], metavar="NAME=VALUE", help=about)
    about = "the folder that a list's paths start from (default: the list's folder)"
    images.add_argument("--root", type=local_path, metavar="ROOT", help=about)


def index(args: argparse.Namespace) -> int:
    """Makes a dlio data set of the images or shards in PATH, in place; the files are not changed.

    For images, OUT gets a manifest, lists of the files with their sizes, times and labels, and a link to their folder.
    If a file has changed since, a loader raises an error that names it.

    For shards, PATH gets manifest.jsonl and the folder .dlio-index. The folder holds a table of the samples of each
    shard, and the offsets of its records for a TFRecord, RecordIO or WebDataset shard without a NAME.idx. During the
    run, a folder .dlio-indexing excludes other runs. If PATH is read-only, make a folder elsewhere with links to the
    shards and their indexes, and give that folder.
    """
    source = args.path if args.format else _source(args)
    with Progress("index", unit="bytes", quiet=args.quiet) as progress, watching(progress.watch):
        manifest = dlio.index(
            source,
            **chosen(args, "out", "format", "checksums", "on_error", "match", "schema", "label_offset"),
            **chosen(args, "overwrite", "workers"),
            started=progress.start,
            report=lambda shard: progress.advance(shard.files[0].num_bytes, shard.files[0].num_bytes, 1),
        )
    for key, reason in manifest.skipped:
        complain(f"skipped {key!r}: {reason}")
    print_report(args, describe(manifest) | {"path": str(manifest.root if args.format is None else args.path)})
    return EXIT_SKIPPED if manifest.skipped else EXIT_DONE


def _source(args: argparse.Namespace) -> Source:
    return sources.open_source(args.path, name=args.source, root=args.root, **dict(args.option))


def _schema(text: str) -> Schema:
    try:
        types = json.loads(text)
        if not isinstance(types, dict) or not types:
            raise ValueError("expected an object of field names and types")
        return Schema.of({name: str(kind) for name, kind in types.items()})
    except (ValueError, DlioError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a schema such as {_SCHEMA}: {error}") from None
