"""Runs fault scenarios ("acts") for a while: `python -m tools.chaos --seconds 3600 --seed 1 [--only NAME]`."""

from __future__ import annotations

import argparse
import importlib
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from types import ModuleType

from tools.chaos import acts
from tools.chaos.linux import NEEDS, keep_mounts_private
from tools.chaos.scene import Scene
from tools.chaos.violation import Violation
from tools.chaos.world import World

_AT_LEAST_ONCE = "each act is played once, whatever the time"


def main() -> int:
    """Plays, prints the summary, and returns 1 if something did not hold or nothing could be played."""
    known = all_acts()
    parser = argparse.ArgumentParser(prog="tools.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help=f"no act begins later; {_AT_LEAST_ONCE}")
    parser.add_argument("--seed", type=int, default=1, help="of the first act; each that follows has the next number")
    parser.add_argument("--only", metavar="NAME", choices=sorted(known), help=f"one of {', '.join(sorted(known))}")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = {args.only: known[args.only]} if args.only else known
    lacks, counts = missing(chosen), Counter[tuple[str, str]]()
    report_left_out(lacks)
    try:
        play_all({name: act for name, act in chosen.items() if name not in lacks}, args.seed, args.seconds, counts)
    except KeyboardInterrupt:
        print("interrupted")
        lacks |= {name: ["more time"] for name in set(chosen) - {name for name, _ in counts} - set(lacks)}
    return summary(counts, lacks)


def all_acts() -> dict[str, ModuleType]:
    """Returns the modules of `tools.chaos.acts`, by name."""
    names = sorted(path.name[:-3] for path in files(acts).iterdir() if path.name.endswith(".py"))
    return {name: importlib.import_module(f"{acts.__name__}.{name}") for name in names if name != "__init__"}


def missing(chosen: Mapping[str, ModuleType]) -> dict[str, list[str]]:
    """Returns the acts that this machine cannot play, each with what it needs and lacks."""
    found = {need for need, is_here in NEEDS.items() if is_here()}
    return {name: sorted(set(act.NEEDS) - found) for name, act in chosen.items() if set(act.NEEDS) - found}


def report_left_out(lacks: Mapping[str, Sequence[str]]) -> None:
    """Prints a line for each act that is not played, with the reason."""
    for name, needs in sorted(lacks.items()):
        print(f"left out: {name} needs {', '.join(needs)}")


def play_all(known: Mapping[str, ModuleType], seed: int, seconds: float, counts: Counter[tuple[str, str]]) -> None:
    """Plays each act once, then random acts until the time is over."""
    deadline = time.monotonic() + seconds
    if "root" in {need for act in known.values() for need in act.NEEDS}:
        keep_mounts_private()
    with World() as world:
        for number, name in enumerate(order(sorted(known), seed)):
            if number >= len(known) and time.monotonic() > deadline:
                return
            play(world, name, known[name], seed + number, counts)


def order(names: Sequence[str], seed: int) -> Iterator[str]:
    """Yields all names in random order, then random names without end."""
    choose = random.Random(seed)
    yield from choose.sample(names, len(names))
    while names:
        yield choose.choice(names)


def play(world: World, name: str, act: ModuleType, seed: int, counts: Counter[tuple[str, str]]) -> None:
    """Plays one act and counts its outcome before printing it: the reader of the output may interrupt at once."""
    started, outcome = time.monotonic(), "held"
    scene = Scene(world, world.folder / f"act-{seed}", random.Random(seed))
    try:
        act.play(scene)
        scene.finish()
    except Exception as error:
        outcome = "VIOLATED" if isinstance(error, Violation) else "FAILED"
        reason = str(error) if isinstance(error, Violation) else traceback.format_exc()
        print(f"{outcome} {name}: {reason}\n  again: python -m tools.chaos --only {name} --seed {seed} --seconds 0")
    finally:
        scene.close()
    seconds = time.monotonic() - started
    counts[name, outcome] += 1
    print(f"{outcome:8} {name} seed {seed}: {len(scene.processes)} processes, {seconds:.1f} s", flush=True)


def summary(counts: Counter[tuple[str, str]], lacks: Mapping[str, Sequence[str]]) -> int:
    """Prints how often each act was played, how it ended, and which were not played; returns the exit code."""
    for (name, outcome), count in sorted(counts.items()):
        print(f"{count:6} {name} {outcome}")
    report_left_out(lacks)
    violated = sum(count for (_, outcome), count in counts.items() if outcome != "held")
    print(f"{counts.total()} acts, {violated} violated, {len(lacks)} left out")
    return 1 if violated or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
