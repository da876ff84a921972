"""Breaks lines that carry a promise, one at a time, and reports those that no test misses; see README.md."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue

from tools.mutants.changed import base_of_change, touched
from tools.mutants.mutation import LISTS, Mutation, MutationError, load
from tools.mutants.trial import FINE, TOGETHER, Result, Verdict, tried
from tools.mutants.view import View, clear

_OF_THE_HISTORY = "(the history's)"


def main(arguments: list[str] | None = None) -> int:
    """Tries mutations; returns 1 if one survived, is stale, or could not be tried."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that views are removed
    try:
        listed = load(options.lists)
        stale = [Result(each, Verdict.STALE, problem) for each in listed if (problem := _problem(each))]
        chosen = _chosen([each for each in listed if each not in {found.mutation for found in stale}], options)
    except MutationError as error:
        print(f"python -m tools.mutants: {error}", file=sys.stderr)
        return 2
    if options.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `head` has seen enough
        for each in chosen:
            print(f"{each.name:44} {each.file}: {each.promise}")
        print(f"{len(chosen)} mutations")
        return 0
    for result in stale:
        _show(result)
    began = time.monotonic()
    results = [*stale, *_all_tried(chosen, began + options.seconds, options.jobs)]
    return _summary(results, time.monotonic() - began)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these only, such as live/*")
    about = "those that the change since a commit touches; by default since the main branch"
    parser.add_argument("--changed", nargs="?", const=_OF_THE_HISTORY, metavar="BASE", help=about)
    about = "begin none after so long, and name the rest"
    parser.add_argument("--seconds", type=float, default=float("inf"), help=about)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="so many at once")
    parser.add_argument("--list", action="store_true", help="print them")
    parser.add_argument("--lists", type=Path, default=LISTS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _problem(mutation: Mutation) -> str:
    try:
        mutation.text()
    except MutationError as error:
        return str(error)
    return ""


def _chosen(mutations: Sequence[Mutation], options: argparse.Namespace) -> list[Mutation]:
    """Returns the mutations that the options name."""
    if options.changed:
        base = base_of_change() if options.changed == _OF_THE_HISTORY else options.changed
        print(f"changed since {base[:12] or 'ever'}", flush=True)
        mutations = touched(mutations, base)
    found = [each for each in mutations if not options.only or any(fnmatch(each.name, name) for name in options.only)]
    if options.only and not (found or options.changed):
        raise MutationError(f"no mutation is called {' or '.join(options.only)}: see --list")
    return found


def _all_tried(mutations: Sequence[Mutation], deadline: float, jobs: int) -> Iterator[Result]:
    """Yields the results of mutations, several tried at once, each in its own view."""
    groups = [mutations[first : first + TOGETHER] for first in range(0, len(mutations), TOGETHER)]
    folder, free = Path(tempfile.mkdtemp(prefix="dlio-mutants-")), SimpleQueue[View]()
    folder.chmod(0o755)
    try:
        views = [View(folder / str(number)) for number in range(jobs)]
        for view in views:
            free.put(view)

        def work(group: Sequence[Mutation]) -> list[Result]:
            view, found = free.get(), []
            try:
                for result in tried(view, group, deadline):
                    _show(result)
                    found.append(result)
            finally:
                free.put(view)
            return found

        with ThreadPoolExecutor(jobs) as pool:
            try:
                for found in pool.map(work, groups):
                    yield from found
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for view in views:
                    view.stop()
                raise
    finally:
        clear(folder)


def _show(result: Result) -> None:
    print(f"{result.verdict:9} {result.mutation.name:44} {result.seconds:6.1f} s  {result.why}", flush=True)


def _summary(results: Sequence[Result], seconds: float) -> int:
    """Prints all outcomes; returns the exit code."""
    bad = [each for each in results if each.verdict not in FINE]
    for each in bad:
        print(
            f"\n{each.verdict}: {each.mutation.name}, in {each.mutation.file}\n  {each.mutation.promise}\n  {each.why}"
        )
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(each.verdict for each in results).items())
    cpu = usage.ru_utime + usage.ru_stime
    print(f"\n{len(results)} mutations: {counts or 'none'}; {seconds:.0f} s, {cpu:.0f} s of a processor")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
