"""What can be fuzzed: a target for each reader of dlio, with its seeds and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.fuzz.inputs import Files


class Broken(Exception):  # noqa: N818  it names a promise that a target does not keep
    """A promise that an input breaks; the details follow ` (`."""


def require(holds: bool, promise: str) -> None:
    """Raises Broken if a promise does not hold."""
    if not holds:
        raise Broken(promise)


@dataclass(frozen=True)
class Target:
    """A reader of dlio.

    Attributes:
        name: as on the command line.
        seeds: makes real inputs, all of which are read.
        check: reads an input, whose files lie in the folder; raises DlioError if dlio refuses it, Broken if a
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
