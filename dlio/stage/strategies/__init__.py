"""Strategies: ways to stage a data set. Each is one module, found by its name.

To add a strategy, add a module to this folder, or name a module of your own package with its dots
(`dlio stage --strategy mypackage.relay`). It fulfils `Strategy`: it plans, and the engine carries the plan out. The
choice of `auto` and `dlio plan` take into account each strategy in this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from dlio.io import extensions

if TYPE_CHECKING:  # the command line's help is not to load these
    from dlio.io.lustre import Layout
    from dlio.stage.planning.cost import Cost, Machine, Volume
    from dlio.stage.planning.flows import Flows, Sizes
    from dlio.stage.planning.job import Job
    from dlio.stage.planning.plan import Plan

AUTO = "auto"  # stands for the strategy that `dlio.stage.choose.auto` chooses


@dataclass(frozen=True, slots=True)
class Needs:
    """What a strategy needs, and what it gives each node.

    Attributes:
        exchange: all nodes at once, which pass data to each other (dlio/stage/strategies/broadcast.py).
        shared: a destination that all nodes see; else it is storage of each node's own.
        parts: a choice of `Options.copies`, since each node gets a part; else each node gets the whole data set.
    """

    exchange: bool = False
    shared: bool = False
    parts: bool = False

    @property
    def only_data_sets(self) -> bool:
        """Whether it stages data sets only, and no other files and folders."""
        return self.shared or self.parts


class Strategy(Protocol):
    """What a strategy's module holds."""

    @property
    def NEEDS(self) -> Needs:  # noqa: N802  a constant of the module
        """What the strategy needs."""

    def cost(self, volume: Volume, machine: Machine, copies: int) -> Cost:
        """Returns the predicted cost, whether it fits or not; `why` says in a clause what the nodes do.

        Raises:
            UsageError: this number of copies is impossible.
        """

    def copy_name(self, job: Job) -> str:
        """Returns the name of this node's copy: the content id, followed by `.<node>of<nodes>x<copies>` for a part.

        Raises:
            UsageError: the job lacks what the strategy needs.
        """

    def plan(self, job: Job) -> Plan:
        """Returns what this node keeps, and what it reads from the source.

        `dlio stage` and agents carry out the same plan; agents of several nodes also pass files to each other.
        With `Needs.exchange` the nodes of the job are numbered. With `Needs.shared` it is asked for each node's share.

        Raises:
            UsageError: the job lacks what the strategy needs.
        """


@runtime_checkable
class LayingOut(Protocol):
    """An optional ability: a strategy that chooses how files are striped."""

    def layouts(self, job: Job) -> Mapping[str, Layout]:
        """Returns how each file shall be striped, by name; empty if the file system decides.

        Raises:
            StorageError: the stripes that were asked for are impossible.
        """


@runtime_checkable
class Simulated(Protocol):
    """An optional ability: a strategy that the simulator knows (`dlio plan --simulate`)."""

    def flows(self, sizes: Sizes, num_nodes: int, copies: int) -> Flows:
        """Returns the bytes that each node moves.

        Raises:
            UsageError: this number of copies is impossible.
        """


def names() -> list[str]:
    """Returns the names of the strategies in this folder, sorted."""
    return extensions.names(__path__)


def load(name: str) -> Strategy:
    """Returns the strategy of this name, or the module of this dotted path, which is imported.

    Raises:
        UsageError: no such strategy exists.
    """
    members = ["NEEDS", "cost", "copy_name", "plan"]
    return cast(Strategy, extensions.load(name, "a strategy", __name__, [AUTO, *names()], members))


def names_for(*, shared: bool) -> str:
    """Returns the names of the strategies for a destination that all nodes see, or for storage of each node's own."""
    return ", ".join(name for name in names() if load(name).NEEDS.shared == shared)


def needs_of(name: str) -> Needs | None:
    """Returns what a strategy needs; None for `auto`.

    Raises:
        UsageError: no such strategy exists.
    """
    return None if name == AUTO else load(name).NEEDS


def cost_of(name: str, volume: Volume, machine: Machine, copies: int = 1) -> Cost:
    """Returns the predicted cost of a strategy; raises as `load` and `Strategy.cost`."""
    return replace(load(name).cost(volume, machine, copies), strategy=name)
