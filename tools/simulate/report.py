"""What is printed of schedules, and how the shortest list of faults is found that breaks a promise."""

from __future__ import annotations

import resource
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

import dlio
from dlio.errors import StorageError, UsageError
from tools.simulate import forked, scenario
from tools.simulate.cluster import Size
from tools.simulate.faults import Fault, drawn
from tools.simulate.scenario import Outcome
from tools.simulate.scheduler import S
from tools.simulate.timeline import as_svg

_LINES = 30  # of a trace that breaks a promise
_SHRINKING = 60.0  # seconds


def one(seed: int, size: Size, on: Collection[str], arguments: Namespace) -> Outcome:
    """Runs one schedule as the arguments of the command say, prints what matters of it, and returns it."""
    every = drawn(seed, size, on)
    numbers = _replayed(arguments.replay, len(every))
    deadline = time.monotonic() + _SHRINKING

    def run(chosen: Sequence[int], *, keep: bool = True) -> Outcome:
        faults = [every[number] for number in chosen]
        return forked.run(forked.Schedule(seed, size, faults, keep, arguments.until))

    def breaks(chosen: Sequence[int]) -> bool:
        return time.monotonic() < deadline and bool(run(chosen, keep=False).broken)

    outcome = run(numbers)
    if outcome.broken and (fewer := shortened(numbers, breaks)) != numbers:
        outcome, numbers = run(fewer), fewer
    _show(outcome, size, every, numbers, arguments)
    if arguments.svg:
        try:
            arguments.svg.write_text(as_svg(f"seed {seed}: {outcome.kind}; {outcome.broken}", outcome.trace))
        except OSError as error:
            raise StorageError(f"--svg {arguments.svg}: {error.strerror}: name a file that can be written") from error
    return outcome


def several(on: Collection[str], arguments: Namespace) -> Iterator[Outcome]:
    """Yields the outcomes of many schedules, and prints those that break a promise: the first one as `one` does."""

    def schedule(seed: int) -> forked.Schedule:
        size = scenario.small(seed, arguments.nodes, arguments.files)
        return forked.Schedule(seed, size, drawn(seed, size, on))

    is_first = True
    for outcome in forked.several(map(schedule, range(arguments.seed, arguments.seed + arguments.schedules))):
        if outcome.broken and is_first:
            is_first = False
            one(outcome.seed, schedule(outcome.seed).size, on, arguments)
        elif outcome.broken:
            again = schedule(outcome.seed)
            _show(outcome, again.size, again.faults, range(len(again.faults)), arguments)
        yield outcome


@cache
def version() -> str:
    """Returns a digest of the sources that decide what a seed means: those of dlio and of the simulator."""
    digest = blake2b(digest_size=6)
    for folder in (Path(dlio.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _replayed(text: str | None, count: int) -> list[int]:
    try:
        found = list(range(count)) if text is None else [int(number) for number in text.split(",") if number]
    except ValueError as error:
        raise UsageError(f"--replay {text}: expected numbers with commas") from error
    if not all(0 <= number < count for number in found):
        raise UsageError(f"--replay {text}: this seed draws the faults 0 to {count - 1}")
    return found


def shortened(numbers: Sequence[int], breaks: Callable[[Sequence[int]], bool]) -> list[int]:
    """Returns the fewest faults found that break a promise still: parts are left out, then smaller ones."""
    left, parts = list(numbers), 2
    while len(left) >= 1:
        step = -(-len(left) // parts)
        fewer = next((try_ for at in range(0, len(left), step) if breaks(try_ := left[:at] + left[at + step :])), None)
        if fewer is not None:
            left, parts = fewer, max(2, parts - 1)
        elif step == 1:
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def _show(outcome: Outcome, size: Size, every: Sequence[Fault], numbers: Sequence[int], arguments: Namespace) -> None:
    print(
        f"seed {outcome.seed}: {outcome.kind}, {size.nodes} nodes, {outcome.events:,} events in "
        f"{outcome.ended / S:.3f} s of virtual time, {outcome.source:.3f} of the set read from the source, "
        f"trace {outcome.digest}"
    )
    for number in numbers:
        print(f"  fault {number}: {every[number]}")
    for failure in outcome.failures:
        print(f"  failed and came again: {failure}")
    lines = arguments.trace or (_LINES if outcome.broken else 0)
    for line in outcome.trace[-lines:] if lines else []:
        print(f"  {line}")
    if arguments.until is not None and outcome.events >= arguments.until:
        print(f"stopped after event {arguments.until:,}: what must hold in the end was not checked")
    if outcome.broken:
        replay = ",".join(map(str, numbers))
        print(f"BROKEN: {outcome.broken}")
        print(
            f"again: python -m tools.simulate --version {version()} --seed {outcome.seed} --nodes "
            f"{size.nodes} --files {len(size.files)} --faults {arguments.faults} --replay {replay}"
        )


def sum_up(outcomes: Sequence[Outcome]) -> None:
    """Prints how many schedules there were, what jobs did, how long they took, and how many had each fault."""
    usage, broken = resource.getrusage(resource.RUSAGE_CHILDREN), sum(bool(each.broken) for each in outcomes)
    seconds, events = usage.ru_utime + usage.ru_stime, sum(each.events for each in outcomes)
    print(
        f"{len(outcomes):,} schedules of {events:,} events, a promise broken in {broken:,}; {seconds:,.0f} s of a "
        f"processor, so {len(outcomes) / max(seconds, 1e-9) * 3600:,.0f} an hour on each"
    )
    happened = Counter(name for each in outcomes for name in (each.kind, *each.happened))
    for kind in sorted(happened):
        print(f"  {happened[kind]:>9,} {kind}")
