"""The verb that removes staged copies from the nodes: clean."""

from __future__ import annotations

import argparse
from pathlib import Path

from dlio.cli.options import local_path, seconds
from dlio.cli.output import complain, print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.errors import EXIT_DONE
from dlio.io.sizes import counted
from dlio.rights.patience import DEADLINE_SECONDS
from dlio.stage.copies.locations import folders_to_clean, folders_with_copies
from dlio.stage.copies.node_cache import copies
from dlio.stage.upkeep.clean import clean as remove


def add_verbs(verbs: Verbs) -> None:
    """Adds the verb to the command line."""
    verb = add_verb(verbs, clean, "clean", "clean /local --job 4711 --deadline 30")
    where = "the DEST of dlio stage (default: the folders from which dlio stage chooses)"
    verb.add_argument("dest", metavar="DEST", nargs="?", type=local_path, help=where)
    verb.add_argument("--job", metavar="ID", help="the scheduler's job id (default: this job's)")
    verb.add_argument("--keep", action="store_true", help="end only the leases, and keep the copies for the next job")
    limit = f"stop after this time, and list the copies that are left ({DEADLINE_SECONDS:g})"
    verb.add_argument("--deadline", type=seconds, default=DEADLINE_SECONDS, metavar="SECONDS", help=limit)


def clean(args: argparse.Namespace) -> int:
    """Ends this job's leases on staged data sets, and removes the data sets that no other job uses.

    Without DEST, only the folders from which dlio stage chooses are cleaned. A copy in use stays, and its users are
    printed.

    If a data set is not removed by the deadline, or its agent does not end, it is listed on stderr and left. The exit
    code is still 0, because otherwise any user could make an epilogue fail.
    """
    left, kept = dict[str, str](), dict[Path, str]()

    def note(path: Path, why: str) -> None:
        left[str(path)] = why
        complain(f"left: {path}: {why}")

    removed = remove(args.dest, job=args.job, keep=args.keep, deadline=args.deadline, left=note, kept=kept.__setitem__)
    if args.json:
        stay = {str(path): why for path, why in kept.items()}
        return print_report(args, {"removed": [str(path) for path in removed], "left": left, "kept": stay})
    for path in removed:
        say(args, f"removed {path}")
    for path, why in kept.items():
        say(args, f"kept {path}: {why}")
    if not (removed or left or kept or args.keep):
        say(args, f"removed nothing: no data set is staged in {args.dest or 'the folders of this node'}")
    if args.dest is None and not args.keep:
        for folder in folders_with_copies():
            if folder not in folders_to_clean() and (count := len(copies(folder))):
                held = f"{counted(count, 'copy', 'copies')} in {folder}, which dlio stage does not choose"
                say(args, f"left {held}: dlio clean {folder} removes what is unused there")
    return EXIT_DONE
