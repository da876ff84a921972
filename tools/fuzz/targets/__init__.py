"""What can be fuzzed: a target for each reader of dlio, with its seeds and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.fuzz.inputs import Files


class Broken(Exception):  # noqa: N818  it says what a target promises and does not keep
    """A promise that an input breaks; what follows ` (` tells the details."""


def require(holds: bool, promise: str) -> None:
    """Raises Broken where a promise does not hold."""
    if not holds:
        raise Broken(promise)


@dataclass(frozen=True)
class Target:
    """A reader of dlio.

    Attributes:
        name: as on the command line.
        seeds: makes real inputs, all of which are read.
        check: reads an input, whose files lie in the folder; raises DlioError where dlio refuses it, Broken where a
            promise is broken, and anything else is a finding too.
    """

    name: str
    seeds: Callable[[], list[Files]]
    check: Callable[[Path, Files], None]


def _all() -> dict[str, Target]:
    from tools.fuzz.targets import adopted, containers, images, manifests, sources, tables

    modules = (adopted, containers, images, manifests, sources, tables)
    return {target.name: target for module in modules for target in module.TARGETS}


TARGETS = _all()
