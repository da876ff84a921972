"""The verb that checks packed data sets and repairs staged copies: verify."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from dlio.cli.options import OF_DATASET, above_0, path_or_url, seconds, workers_option
from dlio.cli.output import complain, print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.cli.progress import Progress, terminable
from dlio.dataset.location import TREE, TREE_SUFFIX, folder_of
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.remote import load
from dlio.dataset.tree import added, num_files
from dlio.errors import EXIT_DONE, EXIT_SKIPPED, ManifestError, UsageError
from dlio.io.sizes import counted, format_size
from dlio.pack.inspect.sealing import seal
from dlio.pack.inspect.verify import Damage
from dlio.pack.inspect.verify import verify as find_damage
from dlio.pack.shard_progress import watching
from dlio.rights.patience import DEADLINE_SECONDS
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.upkeep.repair import manifest_at_rest, staged_copy
from dlio.stage.upkeep.repair import seal as seal_copy
from dlio.stage.upkeep.scrub import Scrubbed, check_and_mend, scrub, step_back
from dlio.urls import is_url, shown

_MOST_NAMED = 10


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(
        verbs,
        verify,
        "verify packed --decode",
        "verify /local/dlio/CONTENT_ID --repair",
        "verify --staged /local --repair --max-rate 100M",
    )
    what = f"{OF_DATASET}; with --staged, the DEST of dlio stage (default: the folders that dlio clean searches)"
    verb.add_argument("dataset", metavar="DATASET", nargs="?", type=path_or_url, help=what)
    verb.add_argument("--decode", action="store_true", help="also decode every image")
    of_copies = verb.add_argument_group("staged copies")
    of_copies.add_argument(
        "--repair", action="store_true", help="copy the damaged files of a staged copy again from its source"
    )
    origin = "repair from this folder or URL (default: the source of the copy)"
    of_copies.add_argument("--from", dest="source", metavar="SOURCE", help=origin)
    of_copies.add_argument(
        "--staged", action="store_true", help="check all your staged copies; as root, those of all users"
    )
    rate = "with --staged: read at most SIZE bytes a second"
    of_copies.add_argument("--max-rate", dest="max_rate", type=above_0, metavar="SIZE", help=rate)
    seal = "if nothing is damaged, add the digest line that manifests of dlio 0.1 lack"
    verb.add_argument("--seal", action="store_true", help=seal)
    limit = f"with --staged, as root: the seconds that the copies of all other users may take ({DEADLINE_SECONDS:g})"
    of_copies.add_argument("--deadline", type=seconds, metavar="SECONDS", help=limit)
    workers_option(verb)


def verify(args: argparse.Namespace) -> int:
    """Checks every digest and every record of the packed data set DATASET; exits with 1 if something is damaged.

    At a URL, each file is read twice. If the data set is staged in parts, the part on this node is checked. In the copy
    of a file or folder, files with another time count as damaged. Files that were added to the copy are named (with
    --staged: counted), and do not change the exit code.

    --seal adds the digest line that manifests of dlio 0.1 lack, so that later damage to the manifest is found.

    --repair checks the digests of a staged copy, and copies damaged and missing files again from its source. The exit
    code is 0 if no damage is left.

    --staged checks the digests of all complete copies on a node, at idle priority, without the page cache, and without
    marking a copy as used. In a crontab: 0 3 * * 0 dlio verify --staged /local --repair --max-rate 100M --quiet
    """
    _check_options(args)
    if args.staged:
        return _scrub(args)
    return _repair(args) if args.repair else _verify(args)


def _check_options(args: argparse.Namespace) -> None:
    """Raises UsageError for options that contradict each other."""
    if args.dataset is None and not args.staged:
        raise UsageError("DATASET is missing: give the folder that holds manifest.jsonl, or --staged for all copies")
    if (args.staged or args.repair) and args.dataset is not None and is_url(args.dataset):
        raise UsageError(
            f"--staged and --repair are for copies in folders, not for {shown(args.dataset)}: leave them out"
        )
    if args.source is not None and (args.staged or not args.repair):
        raise UsageError("--from names the source of one copy for --repair, without --staged")
    if args.max_rate is not None and not args.staged:
        raise UsageError("--max-rate is for --staged")
    if args.seal and (args.staged or args.repair or is_url(args.dataset)):
        raise UsageError(
            "--seal is for one data set in a folder, without --staged and --repair: for a URL, seal the folder that "
            "was uploaded, then upload manifest.jsonl again"
        )
    if args.deadline is not None and not args.staged:
        raise UsageError("--deadline is for --staged")
    if (args.staged or args.repair) and (args.decode or args.workers):
        raise UsageError("--staged and --repair check digests, in one process: leave out --decode and --workers")


def _verify(args: argparse.Namespace) -> int:
    manifest = load(args.dataset)
    shards = manifest.shards_here
    num_samples = sum(shard.num_samples for shard in shards)
    copy = None if manifest.url else staged_copy(manifest.root)
    damage = _strange_manifest(copy)
    with Progress("verify", unit="samples", quiet=args.quiet) as progress, watching(progress.watch):
        progress.start(num_samples, len(shards))
        damage += find_damage(
            manifest,
            decode=args.decode,
            workers=args.workers,
            report=lambda shard: progress.advance(shard.num_samples, shard.num_bytes, 1),
        )
    for item in damage:
        complain(f"damaged: {item}")
    more = _added(manifest, damage)
    for name in more[:_MOST_NAMED]:
        complain(f"added: {manifest.root / name}: it was added after the copy was made; remove it if nobody needs it")
    if damage and copy is not None:
        _advise(str(args.dataset))
    if args.seal and not damage and not manifest.digest:
        seal(manifest) if copy is None else seal_copy(copy, manifest)
    print_report(
        args,
        {
            **_held(manifest, num_samples),
            "bytes": sum(shard.num_bytes for shard in shards),
            **_part(manifest),
            **({"sealed": not damage} if args.seal else {}),
            **({"added": more if args.json else len(more)} if manifest.format == TREE else {}),
            "damaged": [asdict(item) for item in damage] if args.json else _counted(damage),
            "path": shown(str(args.dataset)),
        },
    )
    return EXIT_SKIPPED if damage else EXIT_DONE


def _advise(words: str) -> None:
    complain(f"to copy the damaged files again from their source: dlio verify {words} --repair")


def _added(manifest: Manifest, damage: list[Damage]) -> list[str]:
    """Returns what somebody has put into a folder that was staged as it is."""
    if manifest.format != TREE or manifest.url or any(item.path.endswith(TREE_SUFFIX) for item in damage):
        return []
    return added(manifest, manifest.root)


def _held(manifest: Manifest, num_samples: int) -> dict[str, int]:
    """Returns the report's entry for how much was checked."""
    if manifest.format == TREE:
        return {"files": num_files(manifest)}
    return {"samples": num_samples}


def _counted(damage: list[Damage]) -> str:
    """Returns how many files are damaged, and how many records in them; 0 if none is."""
    num_records = sum(item.record is not None for item in damage)
    in_files = counted(len({item.path for item in damage}), "file") if damage else "0"
    return f"{in_files}, {counted(num_records, 'record')}" if num_records else in_files


def _part(manifest: Manifest) -> dict[str, str]:
    """Returns the report's entry for a data set that is only partly on this node."""
    if manifest.node is None:
        return {}
    return {"part": f"node {manifest.node}'s, {len(manifest.shards_here)} of {len(manifest.shards)} shards"}


def _strange_manifest(folder: StagedFolder | None) -> list[Damage]:
    """Returns the damage of the readable manifest of a staged copy."""
    if folder is None:
        return []
    try:
        manifest_at_rest(folder)
    except ManifestError as error:
        return [Damage("", str(folder.path / NAME), error.text)]
    return []


def _repair(args: argparse.Namespace) -> int:
    given = folder_of(args.dataset)
    folder = staged_copy(given) or staged_copy(given.parent)  # a folder that was staged as it is lies in its copy
    if folder is None:
        raise UsageError(
            f"{args.dataset} is not a staged copy (DEST/dlio/<content id>), and --repair repairs nothing else: "
            "restore its damaged files from a backup, or pack it again"
        )
    if not folder.has_manifest():
        raise UsageError(f"{folder.path} is not complete: run dlio stage again")
    with terminable():
        copy = check_and_mend(folder, args.source)
    _print_copy(args, copy)
    if args.json:
        print_report(args, asdict(copy))
    return EXIT_DONE if copy.is_whole else EXIT_SKIPPED


def _scrub(args: argparse.Namespace) -> int:
    step_back()
    found, deadline = [], args.deadline or DEADLINE_SECONDS
    with terminable():
        for copy in scrub(args.dataset, mend=args.repair, max_rate=args.max_rate, deadline=deadline):
            found.append(copy)
            _print_copy(args, copy)
    if args.json:
        print_report(args, {"copies": [asdict(copy) for copy in found]})
    elif any(copy.damaged for copy in found) and not args.repair:
        _advise(f"--staged {args.dataset}" if args.dataset else "--staged")
    elif not found:
        say(args, "nothing was checked: you have no complete copy there")
    return EXIT_DONE if all(copy.is_whole for copy in found) else EXIT_SKIPPED


def _print_copy(args: argparse.Namespace, copy: Scrubbed) -> None:
    """Prints a line for a copy, and on stderr a line for each damaged file and for each problem."""
    for name, damage in copy.damaged.items():
        complain(f"damaged: {copy.path}/{name}: {damage}")
    for name, reason in copy.not_repaired.items():
        if reason:
            complain(f"not repaired: {copy.path}/{name}: {reason}")
    if copy.problem:
        complain(f"{'not repaired' if copy.damaged else 'not checked'}: {copy.path}: {copy.problem}")
    if copy.damaged or not copy.problem:
        state = f"{len(copy.damaged)} damaged, {len(copy.repaired)} repaired" if copy.damaged else "whole"
        more = f", {len(copy.added)} added" if copy.added else ""
        say(args, f"{copy.path}: {counted(copy.files, 'file')}, {format_size(copy.bytes)}, {state}{more}")
