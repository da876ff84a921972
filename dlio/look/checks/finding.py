"""Finding: one line of `dlio doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How serious a finding is."""

    GOOD = "good"
    CHANGE = "change"  # it works, and could be better
    BROKEN = "broken"  # something cannot work


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact on this machine.

    Attributes:
        check: what was checked.
        state: whether it is good.
        found: the fact.
        advice: what to change; "" if it is good.
    """

    check: str
    state: State
    found: str
    advice: str = ""


#: Yields the findings of a check of this name.
Check = Callable[[str], Iterator[Finding]]


def judged(check: str, found: str, problem: bool, advice: str) -> Finding:
    """Returns a finding that is good, or with a problem a change, with the advice."""
    return Finding(check, State.CHANGE, found, advice) if problem else Finding(check, State.GOOD, found)
