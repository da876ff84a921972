"""The verb that makes other tools' shards a data set: index."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from dlio.cli.options import add_verb, chosen, local_path, workers_option
from dlio.cli.output import describe, print_report
from dlio.cli.progress import Progress
from dlio.errors import DlioError

if TYPE_CHECKING:
    from dlio.dataset.schema import Schema


def add_verbs(verbs: Any) -> None:
    """Adds this verb to the command line."""
    from dlio.pack.index import names

    adopt = add_verb(verbs, index)
    adopt.add_argument("path", metavar="PATH", type=local_path, help="the folder of the shards, or of links to them")
    adopt.add_argument("--format", required=True, choices=names(), help="what the shards are")
    adopt.add_argument("--match", metavar="PATTERN", help="take the names that fit only, such as 'train-*'")
    adopt.add_argument(
        "--schema",
        type=_schema,
        metavar="JSON",
        help='what the records hold, such as \'{"image": "bytes", "label": "int64"}\' (default: as the first)',
    )
    adopt.add_argument(
        "--label-offset", type=int, default=0, metavar="N", help="labels are class indices plus N, as 1 in ImageNet's"
    )
    workers_option(adopt)
    adopt.add_argument("--overwrite", action="store_true", help="index anew what has been indexed")


def index(args: argparse.Namespace) -> int:
    """Makes the shards in PATH, whatever made them, a data set of dlio; nothing in them is changed.

    Written to PATH are manifest.jsonl and the folder .dlio-index: a table of the samples of each shard, and of a
    TFRecord, RecordIO or WebDataset shard without a NAME.idx, where its records lie; while it runs, .dlio-indexing too,
    which keeps a second index out. Where PATH may only be read, make
    a folder of links to the shards and their indexes elsewhere, and give that.
    """
    from dlio.pack.index import index as adopt

    with Progress("index", unit="shards", quiet=args.quiet) as progress:
        manifest = adopt(
            args.path,
            **chosen(args, "format", "match", "schema", "label_offset", "overwrite", "workers"),
            started=progress.start,
            report=lambda shard: progress.advance(1, shard.num_bytes),
        )
    return print_report(args, describe(manifest) | {"path": str(args.path)})


def _schema(text: str) -> Schema:
    from dlio.dataset.schema import Schema

    try:
        types = json.loads(text)
        if not isinstance(types, dict) or not types:
            raise ValueError("expected an object of field names and types")
        return Schema.of({name: str(kind) for name, kind in types.items()})
    except (ValueError, DlioError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no schema: {error}") from None
