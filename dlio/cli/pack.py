"""The verbs that make packed data sets: pack, convert."""

from __future__ import annotations

import argparse

import dlio
from dlio import formats
from dlio.cli.options import (
    OF_DATASET,
    Options,
    chosen,
    count,
    engine_options,
    known_values,
    local_path,
    name_and_value,
    open_pool,
    path_or_url,
    size,
)
from dlio.cli.output import complain, print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress
from dlio.dataset.manifest import Manifest
from dlio.dataset.remote import load
from dlio.errors import EXIT_DONE, EXIT_SKIPPED, UsageError
from dlio.executors import Pool
from dlio.io.sizes import counted, format_size
from dlio.pack import sources
from dlio.pack.append import appendable, container
from dlio.pack.inspect.summary import describe
from dlio.pack.listing.base import Source
from dlio.pack.listing.classes import read_classes
from dlio.pack.listing.joined import joined
from dlio.pack.pace import Limits, limited
from dlio.pack.recode import CHECKS, COLORS, ENCODINGS, KEEP, Recode
from dlio.pack.request import PackRequest, make_plan
from dlio.pack.resume import clear_aside
from dlio.pack.shard_progress import watching
from dlio.urls import is_url, shown


def add_verbs(verbs: Verbs) -> None:
    """Adds these verbs to the command line."""
    examples = "pack train packed", "pack labels.csv packed --format lmdb --resize 256 --on-error skip"
    _pack_options(add_verb(verbs, pack, *examples))
    examples = "convert packed shards --format webdataset", "convert packed small --resize 256 --encoding jpeg"
    _convert_options(add_verb(verbs, convert, *examples))


def pack(args: argparse.Namespace) -> int:
    """Packs the samples of SRC, such as class folders, a list, an archive or shards, into shards in OUT.

    If the command is stopped, run it again: it continues.
    """
    try:
        with open_pool(args) as pool:
            if args.dry_run:
                return EXIT_DONE if pool is None else _print_plan(args)
            manifest = load(args.out) if pool is None else _pack(args, pool)
    finally:
        if not args.dry_run and not is_url(args.out):
            clear_aside(args.out)  # again: after an interrupt, workers end only with the pool
    return EXIT_SKIPPED if manifest.skipped else EXIT_DONE


def convert(args: argparse.Namespace) -> int:
    """Writes the packed data set DATASET into OUT, in another format or in other shards.

    Keys, labels, class names and order stay the same. Images are not decoded, unless an option changes their pixels. If
    the command is stopped, run it again: it continues.
    """
    return pack(args)


def _source(args: argparse.Namespace) -> Source:
    paths = args.src if isinstance(args.src, list) else [args.src]
    return joined([sources.open_source(each, name=args.source, root=args.root, **dict(args.option)) for each in paths])


def _recode(args: argparse.Namespace) -> Recode:
    quality = KEEP.quality if args.quality is None else args.quality
    changes = args.resize, args.center_crop, args.color, args.encoding, quality, args.crop_ready
    asked = Recode(*changes, args.check, args.upright, args.decode_ready, args.jpeg)
    if args.quality is not None and not asked.changes_pixels:
        raise UsageError("--quality needs newly encoded images: give --encoding jpeg, or leave it out")
    if args.quality is not None and asked.encoding == "png":
        raise UsageError("--quality is for JPEGs, and --encoding png makes PNGs: leave out one of the two")
    return asked


def _print_plan(args: argparse.Namespace) -> int:
    with limited(Limits(args.max_ops, args.max_rate)):
        sizes = args.shard_size, args.num_shards, args.shuffle, args.label_offset
        onto = appendable(args.out) if args.append else None
        request = PackRequest(container(onto, args.format), *sizes, _recode(args), read_classes(args.classes), onto)
        plan = make_plan(_source(args), request)
    if args.on_error == "raise":
        plan.listing.check_whole()
    _print_skipped(plan.header)
    for shard in plan.shards:
        say(args, f"{shard.name}  {counted(len(shard.indices), 'sample')}, {format_size(shard.num_bytes)}")
    num_bytes = sum(shard.num_bytes for shard in plan.shards)
    report = describe(plan.header) | {"samples": len(plan.listing), "bytes": num_bytes, "shards": len(plan.shards)}
    print_report(args, {name: report[name] for name in report if name != "content_id"})
    return EXIT_SKIPPED if plan.header.skipped else EXIT_DONE


def _print_skipped(manifest: Manifest) -> None:
    for key, reason in manifest.skipped:
        complain(f"skipped {key!r}: {reason}")


def _pack(args: argparse.Namespace, pool: Pool) -> Manifest:
    with Progress("pack", unit="samples", quiet=args.quiet) as progress, watching(progress.watch):
        manifest = dlio.pack(
            _source(args),
            args.out,
            **chosen(args, "format", "label_offset", "shard_size", "num_shards", "shuffle", "on_error", "overwrite"),
            **chosen(args, "max_ops", "max_rate", "classes", "append"),
            recode=_recode(args),
            engine=pool,
            started=progress.start,
            report=lambda shard: progress.advance(shard.num_samples + len(shard.skipped), shard.num_bytes, 1),
        )
    _print_skipped(manifest)
    print_report(args, describe(manifest) | {"path": shown(str(args.out))})
    return manifest


def _pack_options(verb: argparse.ArgumentParser) -> None:
    about = (
        "a folder of class folders, its URL, a list, an archive or shards (see --source); several become one data set"
    )
    verb.add_argument("src", metavar="SRC", type=path_or_url, nargs="+", help=about)
    _out_options(verb)
    add = "add the samples whose keys OUT does not have, in new shards of its format; existing shards do not change"
    verb.add_argument("--append", action="store_true", help=add)
    source = verb.add_argument_group("source")
    kinds, shards = sources.names(), sources.format_names()
    about = f"auto (default), {', '.join(kinds)}; for shards: {', '.join(shards)}; or a module's dotted path"
    known_values(source, "--source", ["auto", *kinds, *shards], default="auto", metavar="SOURCE", help=about)
    about = "an option of the source, such as split=test of cifar10 or clip=8 of frames; may be repeated"
    source.add_argument("--option", type=name_and_value, action="append", default=[], metavar="NAME=VALUE", help=about)
    about = "the folder or URL that a list's paths start from (default: the list's folder)"
    source.add_argument("--root", type=path_or_url, metavar="ROOT", help=about)
    _label_options(source)
    _shard_options(verb, "256MiB")
    _image_options(verb)
    _worker_options(verb)


def _convert_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("src", metavar="DATASET", type=path_or_url, help=OF_DATASET)
    _out_options(verb)
    _label_options(verb.add_argument_group("labels"))
    _shard_options(verb, "the shards of DATASET")
    _image_options(verb)
    jpeg = "write decode-ready records as the JPEGs that they were made from"
    verb.add_argument("--jpeg", action="store_true", help=jpeg)
    _worker_options(verb)
    verb.set_defaults(source="packed", root=None, option=[], append=False)


def _out_options(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(resumes=True, jpeg=False)
    verb.add_argument("out", metavar="OUT", type=path_or_url, help="the folder to write, or an object store's URL")
    verb.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    again = "replace another data set in OUT; if OUT holds the same one, pack its damaged shards again"
    verb.add_argument("--overwrite", action="store_true", help=again)
    bad = (
        "what to do with a bad sample, line or name. The manifest lists skipped ones, and the exit code is 1. "
        "Only an image's header and end are checked; '--check decode' and 'dlio verify --decode' decode images"
    )
    verb.add_argument("--on-error", default="raise", choices=["raise", "skip"], help=bad)


def _label_options(group: Options) -> None:
    group.add_argument("--label-offset", type=int, default=0, metavar="N", help="add N to every class index")
    classes = "the class names, in the order of their indices: a file with one name per line, or a packed data set"
    group.add_argument("--classes", type=local_path, metavar="FILE|DATASET", help=classes)


def _shard_options(verb: argparse.ArgumentParser, usual_size: str) -> None:
    group = verb.add_argument_group("shards")
    kinds = formats.names()
    about = f"{', '.join(kinds)}, or a module's dotted path (default: tfrecord)"
    known_values(group, "--format", kinds, metavar="FORMAT", help=about)
    amount = group.add_mutually_exclusive_group()
    about = f"the target size of a shard (default: {usual_size})"
    amount.add_argument("--shard-size", type=size, metavar="SIZE", help=about)
    amount.add_argument("--num-shards", type=count, metavar="N", help="the number of shards")
    group.add_argument("--shuffle", type=int, metavar="SEED", help="shuffle the samples with this seed")


def _image_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("images")
    upright = "turn images, boxes and masks by the EXIF orientation, before all other changes"
    group.add_argument("--upright", action="store_true", help=upright)
    group.add_argument("--resize", type=count, metavar="N", help="resize images to a shorter edge of N pixels")
    group.add_argument("--center-crop", action="store_true", help="cut out the middle square, after resizing")
    group.add_argument("--color", default="keep", choices=COLORS, help="the colour mode to convert images to")
    group.add_argument("--encoding", default="keep", choices=ENCODINGS, help="the encoding to convert images to")
    quality = f"the quality of newly encoded JPEGs (default: {KEEP.quality})"
    group.add_argument("--quality", type=count, metavar="Q", help=quality)
    crop_ready = "rewrite JPEGs, without loss, so that the loaders can decode only a crop"
    group.add_argument("--crop-ready", action="store_true", help=crop_ready)
    decode_ready = "store JPEGs as records that decode in half of the time, and that only dlio reads; restore them"
    group.add_argument("--decode-ready", action="store_true", help=f"{decode_ready} with dlio convert --jpeg")
    check = "what to check of each image: its header and end, or the whole image, which takes as long as decoding"
    group.add_argument("--check", default=KEEP.check, choices=CHECKS, help=f"{check} (default: {KEEP.check})")


def _worker_options(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("workers and load")
    engine_options(group)
    group.add_argument(
        "--max-ops", type=count, metavar="N", help="at most N operations a second on the file system of SRC"
    )
    group.add_argument(
        "--max-rate", type=size, metavar="SIZE", help="read at most SIZE bytes a second, all workers together"
    )
