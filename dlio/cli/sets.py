"""The verbs that make data sets of others without copying: split, select, merge."""

from __future__ import annotations

import argparse

import dlio
from dlio.cli.options import chosen, local_path
from dlio.cli.output import print_report
from dlio.cli.parser import Verbs, add_verb
from dlio.dataset.manifest import Manifest
from dlio.io.sizes import counted
from dlio.pack.inspect.summary import describe
from dlio.pack.sets import GROUP

_FOLDER = "the folder that holds manifest.jsonl"


def add_verbs(verbs: Verbs) -> None:
    """Adds these verbs to the command line."""
    _split_options(add_verb(verbs, split, "split packed --fractions 0.9,0.1 --by class"))
    examples = "select packed -o cats --class cat", "select packed -o ten --where 'label<10' --list keys.txt"
    _select_options(add_verb(verbs, select, *examples))
    verb = add_verb(verbs, merge, "merge hospital-1 hospital-2 -o all")
    verb.add_argument("datasets", metavar="DATASET", nargs="+", type=local_path, help=_FOLDER)
    verb.add_argument("-o", "--out", type=local_path, required=True, metavar="OUT", help="the folder to write")


def split(args: argparse.Namespace) -> int:
    """Splits the packed data set DATASET at random, such as into train and val, without copying shards.

    OUT gets a folder with a manifest for each part. The manifests refer to the existing shards.
    """
    parts = dlio.split(args.dataset, args.out, **chosen(args, "fractions", "names", "by", "group", "seed"))
    about = {
        name: _about(part) if args.json else f"{counted(part.num_samples, 'sample')}, {part.root}"
        for name, part in parts.items()
    }
    return print_report(args, about)


def select(args: argparse.Namespace) -> int:
    """Makes a data set of some samples of the packed data set DATASET, without copying shards.

    OUT gets a manifest, which refers to the existing shards. Samples must fulfil all the options that you give.
    """
    return print_report(args, _about(dlio.select(args.dataset, args.out, **chosen(args, "classes", "where", "keys"))))


def merge(args: argparse.Namespace) -> int:
    """Makes one data set of several packed data sets, without copying shards.

    OUT gets a manifest, which refers to the existing shards.
    """
    return print_report(args, _about(dlio.merge(args.datasets, args.out)))


def _about(made: Manifest) -> dict[str, object]:
    return describe(made) | {"path": str(made.root)}


def _split_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("dataset", metavar="DATASET", type=local_path, help=_FOLDER)
    verb.add_argument("-o", "--out", type=local_path, metavar="OUT", help="the folder to write (DATASET-split)")
    sizes = "the parts' fractions, such as 0.9,0.1"
    verb.add_argument("--fractions", type=_fractions, required=True, metavar="F,F", help=sizes)
    names = "the parts' names (train,val,test)"
    verb.add_argument("--names", type=lambda text: text.split(","), default=(), metavar="NAME,NAME", help=names)
    by = "class: each part gets its fraction of every class; group, FIELD: a group, or equal values, stay together"
    verb.add_argument("--by", metavar="class|group|FIELD", help=by)
    group = (
        "with --by group: a regular expression that matches each key from its start, and the group, or has it in "
        "parentheses (default: the key's folder)"
    )
    verb.add_argument("--group", default=GROUP, metavar="REGEX", help=group)
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of the random choice (0)")


def _select_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("dataset", metavar="DATASET", type=local_path, help=_FOLDER)
    verb.add_argument("-o", "--out", type=local_path, required=True, metavar="OUT", help="the folder to write")
    verb.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="NAME",
        help="select this class; may be repeated",
    )
    where = "select samples that fulfil this, such as label>=10 or key=cat/*; may be repeated"
    verb.add_argument("--where", action="append", default=[], metavar="COND", help=where)
    keys = "select the keys in this file, one per line"
    verb.add_argument("--list", dest="keys", type=local_path, metavar="FILE", help=keys)


def _fractions(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are not fractions such as 0.9,0.1") from None
