"""The verb that makes shards of other tools a data set: index."""

from __future__ import annotations

import argparse
import json

from dlio.cli.options import chosen, known_values, local_path, workers_option
from dlio.cli.output import print_report
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress
from dlio.dataset.schema import Schema
from dlio.errors import DlioError
from dlio.pack.index import index as index_shards
from dlio.pack.index import names
from dlio.pack.inside import watching
from dlio.pack.inspect.summary import describe

_SCHEMA = """'{"image": "bytes", "label": "int64"}'"""


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(
        verbs,
        index,
        "index shards --format tfrecord --match 'train-*' --label-offset 1",
        "index shards --format webdataset",
        page="how-to/coming-from.md",
    )
    verb.add_argument("path", metavar="PATH", type=local_path, help="the folder of the shards, or of links to them")
    about = f"{', '.join(names())}, or a module's dotted path"
    known_values(verb, "--format", names(), required=True, metavar="FORMAT", help=about)
    verb.add_argument("--match", metavar="PATTERN", help="take only names that match, such as 'train-*'")
    verb.add_argument(
        "--schema",
        type=_schema,
        metavar="JSON",
        help=f"what the records hold, such as {_SCHEMA} (default: as the first records)",
    )
    verb.add_argument(
        "--label-offset",
        type=int,
        default=0,
        metavar="N",
        help="labels are class indices plus N (ImageNet: 1)",
    )
    workers_option(verb)
    verb.add_argument("--overwrite", action="store_true", help="index again shards that have been indexed")


def index(args: argparse.Namespace) -> int:
    """Makes the shards in PATH a dlio data set, whatever tool made them; the shards are not changed.

    Writes manifest.jsonl and the folder .dlio-index to PATH. The folder holds a table of the samples of each shard, and
    the offsets of its records for a TFRecord, RecordIO or WebDataset shard without a NAME.idx. During the run, a folder
    .dlio-indexing keeps other runs out. If PATH is read-only, make a folder of links to the shards and their indexes
    elsewhere, and give that folder.
    """
    with Progress("index", unit="bytes", quiet=args.quiet) as progress, watching(progress.watch):
        manifest = index_shards(
            args.path,
            **chosen(args, "format", "match", "schema", "label_offset", "overwrite", "workers"),
            started=progress.start,
            report=lambda shard: progress.advance(shard.files[0].num_bytes, shard.files[0].num_bytes, 1),
        )
    return print_report(args, describe(manifest) | {"path": str(args.path)})


def _schema(text: str) -> Schema:
    try:
        types = json.loads(text)
        if not isinstance(types, dict) or not types:
            raise ValueError("expected an object of field names and types")
        return Schema.of({name: str(kind) for name, kind in types.items()})
    except (ValueError, DlioError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a schema such as {_SCHEMA}: {error}") from None
