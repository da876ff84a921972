"""The strategy that `auto` stands for: the cheapest that fits; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from dlio.errors import StorageError
from dlio.io.sizes import counted, format_size
from dlio.stage.planning.cost import UNKNOWN_ROOM, Cost, Machine, Volume, pays_after_epochs
from dlio.stage.strategies import Needs, cost_of, load, names, names_for


def choose(volume: Volume, machine: Machine, epochs: int = 0) -> Cost:
    """Returns the cost of the strategy to take: the whole on every node if it fits, else as many copies as fit.

    If the epochs planned repay one copy in parts, but not the whole on every node, parts are chosen as well, provided
    that the nodes can agree on it.

    Args:
        volume: the data set's size.
        machine: the cluster.
        epochs: the number planned; 0 if unknown.

    Raises:
        StorageError: it does not fit at all. (One node has no choice: staging shows whether it fits.)
    """
    chosen = _chosen(volume, machine, epochs)
    return (
        replace(chosen, why=f"{chosen.why} (rates of {machine.rates})", rates=machine.rates)
        if machine.rates
        else chosen
    )


def _chosen(volume: Volume, machine: Machine, epochs: int) -> Cost:
    chosen = _fitting(volume, machine)
    pays_after = pays_after_epochs(chosen.seconds, volume.num_bytes, machine)
    if not epochs or volume.is_tree:
        return chosen
    if pays_after <= epochs:
        return replace(chosen, why=f"{chosen.why}; it pays after {pays_after:.1f} epochs")
    agreed = machine.can_exchange and machine.num_nodes > 1
    parts = _in_parts(volume, machine, 1) if agreed else None
    if parts and pays_after_epochs(parts.seconds, volume.num_bytes, machine) <= epochs:
        within = counted(epochs, "epoch")
        return replace(parts, why=f"one copy in parts pays within {within}, all on every node does not")
    return replace(chosen, why=f"{chosen.why}; {_too_late(pays_after, epochs)}")


def _too_late(pays_after: float, epochs: int) -> str:
    if math.isinf(pays_after):
        return "it never pays: reading in place is as fast"
    return f"it pays after {pays_after:.1f} epochs, but a job of {counted(epochs, 'epoch')} should read in place"


def already_there(num_nodes: int) -> Cost:
    """Returns the cost of the first strategy by name that needs nothing, if every node holds the data set already."""
    name = next(name for name in names() if Needs() == load(name).NEEDS)
    return Cost(num_nodes, 0, 0, 0.0, "the copy exists already", strategy=name)


def choose_shared(volume: Volume, machine: Machine) -> Cost:
    """Returns the cost of the cheapest strategy for a destination that all nodes see."""
    return min(_costs(volume, machine, 1, lambda needs: needs.shared), key=_seconds)


def _fitting(volume: Volume, machine: Machine) -> Cost:
    """Returns the cheapest way to the whole on every node if it fits, else to as many copies as fit."""
    num_bytes, room, n = volume.num_bytes, machine.free_bytes, machine.num_nodes
    if n == 1:
        alone = _costs(volume, machine, 1, lambda needs: needs == Needs())
        return replace(min(alone, key=_seconds), why="there is one node")
    if num_bytes <= room:
        whole = _costs(volume, machine, 1, lambda needs: not (needs.parts or needs.shared))
        best = min(whole, key=_seconds)
        fitting = f"{format_size(num_bytes)} fit into the {format_size(room)} of a node"
        return replace(best, why=f"{fitting}, and {best.why}" if room < UNKNOWN_ROOM else best.why)
    if parts := _in_parts(volume, machine, int((room - volume.largest_shard) * n // num_bytes)):
        large = f"{format_size(num_bytes)} do not fit into the {format_size(room)} of a node"
        return replace(parts, why=f"{large}, but parts of them do")
    if volume.is_tree:
        raise StorageError(f"{num_bytes:,} bytes do not fit into the {room:,} of a node: choose another folder")
    if volume.largest_shard > room:
        one = f"one shard of {volume.largest_shard:,} bytes does not fit: a node has room for {room:,}"
        raise StorageError(f"{one}. Convert the data set to smaller shards (--shard-size), or choose another folder")
    raise StorageError(
        f"{num_bytes:,} bytes do not fit: {n} nodes with room for {room:,} bytes each. "
        f"Use more nodes, or another folder, or read from the shared file system (strategy {names_for(shared=True)})"
    )


def _in_parts(volume: Volume, machine: Machine, copies: int) -> Cost | None:
    """Returns the cheapest way to at most `copies` copies in parts; None if parts do not fit."""
    if copies < 1 or volume.is_tree:
        return None
    ways = _costs(volume, machine, min(copies, machine.num_nodes - 1), lambda needs: needs.parts and not needs.shared)
    fitting = [way for way in ways if way.bytes_per_node + volume.largest_shard <= machine.free_bytes]
    return min(fitting, key=_seconds, default=None)


def _costs(volume: Volume, machine: Machine, copies: int, wanted: Callable[[Needs], bool]) -> Iterator[Cost]:
    """Yields the cost of each strategy with the needs `wanted`, as far as the nodes can meet them."""
    for name in names():
        needs = load(name).NEEDS
        if wanted(needs) and (machine.can_exchange or not needs.exchange):
            yield cost_of(name, volume, machine, copies)


def _seconds(cost: Cost) -> float:
    return cost.seconds
