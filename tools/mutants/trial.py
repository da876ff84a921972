"""The outcome of mutations: each is tried in a view, after its tests have passed without it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tools.mutants.mutation import Mutation
from tools.mutants.view import Run, View

TOGETHER = 8  # mutations whose tests are first run without them, in one process
_LEAST_SECONDS, _TIMES = 60.0, 10  # how long tests may take, and how much longer than all of the same process without
_HANG_SECONDS, _HANG_TIMES = 20.0, 3  # the same where they are expected to hang
_BASE_SECONDS = 600.0


class Verdict(StrEnum):
    """The outcome of a mutation."""

    KILLED = "killed"
    SURVIVED = "survived"
    STALE = "stale"  # its text is not in the file exactly once
    TIMEOUT = "timeout"  # its tests did not end, which was not expected
    BROKEN = "broken"  # its tests fail without it, or could not be run
    SKIPPED = "skipped"  # its tests need what this machine lacks
    LEFT_OUT = "left out"  # no time was left


FINE = (Verdict.KILLED, Verdict.SKIPPED, Verdict.LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one mutation.

    Attributes:
        mutation: the mutation.
        verdict: its outcome.
        why: the test that noticed it, or what else led to the verdict.
        seconds: how long its tests took.
    """

    mutation: Mutation
    verdict: Verdict
    why: str
    seconds: float = 0.0


def tried(view: View, mutations: Sequence[Mutation], deadline: float) -> Iterator[Result]:
    """Yields the results of a few mutations; those for which no time is left until `deadline` are left out."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    left = deadline - time.monotonic()
    base = view.run(tests, None, min(left, _BASE_SECONDS), first_only=False) if left > 0 else None
    if base is not None and base.code not in (0, 1, None):  # one of them cannot even be collected: each by itself
        if len(mutations) > 1:
            for mutation in mutations:
                yield from tried(view, [mutation], deadline)
            return
        yield Result(mutations[0], Verdict.BROKEN, f"its tests cannot be run: {_last_line(base)}")
        return
    for mutation in mutations:
        if base is None or base.code is None:
            yield Result(mutation, Verdict.LEFT_OUT, "its tests take too long without it")
        elif problem := _unfit(mutation, base):
            yield problem
        elif time.monotonic() + base.seconds / len(mutations) > deadline:
            yield Result(mutation, Verdict.LEFT_OUT, "no time was left")
        else:
            yield _judged(
                mutation, view.run(list(mutation.tests), mutation, _patience(mutation, base), first_only=True)
            )


def _patience(mutation: Mutation, base: Run) -> float:
    """Returns how many seconds the tests of a mutation may take."""
    least, times = (_HANG_SECONDS, _HANG_TIMES) if mutation.hang else (_LEAST_SECONDS, _TIMES)
    return max(least, times * base.seconds)


def _of(test: str, outcomes: dict[str, str]) -> set[str]:
    """Returns the outcomes of a test, of its parameters, or of a file."""
    return {how for name, how in outcomes.items() if name == test or name.startswith((f"{test}[", f"{test}::"))}


def _unfit(mutation: Mutation, base: Run) -> Result | None:
    """Returns why a mutation cannot be tried, from what its tests do without it; None if they pass."""
    seen = [_of(test, base.outcomes) for test in mutation.tests]
    if any("failed" in each for each in seen):
        return Result(mutation, Verdict.BROKEN, f"its tests fail without it: {_last_line(base)}")
    if not all(seen):
        return Result(mutation, Verdict.BROKEN, "not all of its tests exist")
    if not any("passed" in each for each in seen):
        return Result(mutation, Verdict.SKIPPED, "its tests are skipped on this machine")
    return None


def _judged(mutation: Mutation, run: Run) -> Result:
    """Returns the result of a run with a mutation."""
    if run.code is None:
        verdict, why = (Verdict.KILLED if mutation.hang else Verdict.TIMEOUT), "its tests do not end"
    elif not run.is_loaded:
        verdict, why = Verdict.BROKEN, f"no process of its tests loads {mutation.module}"
    elif run.code == 1 and run.failed:
        verdict, why = Verdict.KILLED, run.failed[0]
    elif run.code == 0:
        verdict, why = Verdict.SURVIVED, mutation.promise
    else:
        verdict, why = Verdict.BROKEN, f"pytest ended with the exit code {run.code}: {_last_line(run)}"
    return Result(mutation, verdict, why, run.seconds)


def _last_line(run: Run) -> str:
    lines = run.said.strip().splitlines() or ["nothing was printed"]
    return ([line for line in lines if line.startswith(("FAILED", "ERROR"))] or lines)[-1][:400]
