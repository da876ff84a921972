"""How many schedules it takes to find mistakes: python -m tools.simulate.mutants --only 'protocol/*' --schedules 1000

Runs schedules with one line of dlio changed, until a promise is broken that is kept without the change. The mistakes
are those of protocol.toml, and those of tools/mutants/lists/ that a cluster can show.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dlio.cli.options import count
from tools.mutants.mutation import LISTS, ROOT, Mutation, MutationError, load, parse
from tools.mutants.view import View

_PLANTED = Path(__file__).with_name("protocol.toml")
#: Those of tools/mutants/lists/ that break a promise in an honest cluster, by faults that are simulated. The others are
#: of other users, hostile bytes, modes and access, limits of the system, MPI, other file systems, and commands by hand.
LISTED = (
    "cache/names-not-synced", "cache/complete-without-manifest", "copy/no-lease-before-look", "leases/lease-not-taken",
    "live/bit-before-data", "live/live-digest", "live/live-without-fsync", "live/begun-file-of-another-size",
    "live/seen-before-its-blocks", "live/last-page-past-the-cache", "live/digest-without-gap",
    "live/digest-after-damage", "live/held-without-bound", "live/at-once-near-a-reader", "live/at-once-without-fsync",
    "live/bad-bytes-kept", "live/bad-bytes-from-peer-again", "live/relayed-bytes-distrusted", "live/clear-in-part",
    "live/damaged-file-kept", "live/complete-node-leaves-the-others", "live/silent-node-lives",
    "live/failed-sync-of-an-agent-passes", "locks/claim-of-a-live-owner", "locks/silent-but-alive",
    "locks/claim-by-rename", "locks/reused-pid", "locks/claims-that-cannot-be-looked-at", "wire/cut-off-frame",
    "wire/socket-of-the-next-agent",
)  # fmt: skip
#: Not reached: an agent that ends removes its record and its socket within a millisecond, and another one starts only
#: for a next job, or after a removal by hand. Simulated is one job. So no agent binds a socket while another one ends.
UNREACHED = ("wire/socket-of-the-next-agent",)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search.

    Attributes:
        mutation: the mistake.
        schedules: that were run, the last of which broke a promise, if one did.
        seed: of that one; None if there is none.
        broken: the promise.
        seconds: that it took.
    """

    mutation: Mutation
    schedules: int
    seed: int | None
    broken: str
    seconds: float


def mutations(only: Sequence[str] = ()) -> list[Mutation]:
    """Returns the mistakes, those planted first; those whose names fit a pattern, if there are any."""
    listed = [each for each in load(LISTS) if each.name in LISTED]
    every = [*parse(_PLANTED.read_text(), "protocol"), *listed]
    return [each for each in every if not only or any(fnmatch(each.name, name) for name in only)]


def search(first: int, schedules: int, seconds: float, on: str) -> None:
    """Runs schedules in this process's forks until one breaks a promise; prints a line of JSON."""
    import dlio
    from tools.simulate import faults, forked, scenario

    deadline, done, kinds = time.monotonic() + seconds, 0, faults.chosen(on)
    sizes = ((seed, scenario.small(seed)) for seed in range(first, first + schedules))
    drawn = (forked.Schedule(seed, size, faults.drawn(seed, size, kinds), seconds=120) for seed, size in sizes)
    seed, broken = None, ""
    for outcome in forked.several(drawn, at_a_time=1):
        seed, broken, done = outcome.seed, outcome.broken, done + 1
        if broken or time.monotonic() > deadline:
            break
    tree = str(Path(dlio.__file__).resolve().parents[1])
    print(json.dumps({"schedules": done, "seed": seed if broken else None, "broken": broken, "tree": tree}))


def found(view: View, mutation: Mutation, schedules: int, seconds: float, faults: str = "all") -> Found:
    """Returns after how many schedules, with these faults, a mistake breaks a promise that is kept without it.

    Raises:
        MutationError: what ran was other code, or could not run.
    """
    began, first = time.monotonic(), 1
    while True:
        left = seconds - (time.monotonic() - began)
        answer = _searched(view, mutation, first, schedules - first + 1, left, faults)
        last = first + answer["schedules"] - 1
        if answer["seed"] is None or not _searched(view, None, last, 1, seconds, faults)["broken"]:
            return Found(mutation, last, answer["seed"], answer["broken"], time.monotonic() - began)
        first = last + 1


def _searched(
    view: View, mutation: Mutation | None, first: int, schedules: int, seconds: float, faults: str
) -> dict[str, Any]:
    view.prepare(mutation)
    code = f"from tools.simulate.mutants import search; search({first}, {schedules}, {max(0.0, seconds)}, {faults!r})"
    environ = os.environ | {"PYTHONPATH": str(view.path), "PYTHONHASHSEED": "0"}
    done = subprocess.run([sys.executable, "-c", code], cwd=view.path, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise MutationError(
            f"the simulator could not run {mutation.name if mutation else 'dlio'}: {done.stderr[-300:]}"
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if Path(answer["tree"]) != ROOT or (mutation and not view.is_loaded):
        what = mutation.module if mutation else "dlio"
        raise MutationError(f"the schedules ran {answer['tree']}: expected {what} of {ROOT}")
    return answer


def main() -> int:
    """Searches for all mistakes that the options name; returns 1 if one was not found."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="such as protocol/*")
    parser.add_argument("--schedules", type=count, default=1000, help="for each mistake")
    parser.add_argument("--faults", default="all", help="that are drawn, as those of tools.simulate")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each mistake")
    parser.add_argument("--jobs", type=count, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true", help="print them")
    options = parser.parse_args()
    chosen = mutations(options.only)
    if not chosen:
        parser.error(f"no mistake is called {' or '.join(options.only)}: --list prints their names")
    if options.list:
        for each in chosen:
            print(f"{each.name:40} {each.promise}")
        return 0
    results = list(_all_found(chosen, options))
    missed = [each.mutation.name for each in results if each.seed is None]
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(results) - len(missed)} of {len(results)} found; {usage.ru_utime + usage.ru_stime:.0f} s of a processor"
    )
    if missed:
        print(f"not found: {', '.join(missed)}; not to be reached: {', '.join(UNREACHED)}")
    return int(bool(missed))


def _all_found(chosen: Sequence[Mutation], options: argparse.Namespace) -> Iterator[Found]:
    """Yields the result of each search, several at a time, and prints it."""
    free = SimpleQueue[View]()
    with tempfile.TemporaryDirectory(prefix="dlio-mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            free.put(View(Path(folder, str(number))))

        def work(mutation: Mutation) -> Found:
            view = free.get()
            try:
                each = found(view, mutation, options.schedules, options.seconds, options.faults)
            finally:
                free.put(view)
            what = each.broken.replace("\n", " ")[:100] if each.seed is not None else "NOT FOUND"
            print(f"{each.mutation.name:40} {each.schedules:7,} schedules {each.seconds:6.0f} s  {what}", flush=True)
            return each

        yield from pool.map(work, chosen)


if __name__ == "__main__":
    sys.exit(main())
