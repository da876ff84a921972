"""What it costs to stage a data set on a described cluster; the public function is `dlio.plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.io.files import storage_errors
from dlio.stage import simulate as run_through
from dlio.stage import strategies
from dlio.stage.choose import machine_file
from dlio.stage.choose.auto import choose
from dlio.stage.choose.choice import check_tree
from dlio.stage.planning.cost import Cost, LiveCost, Machine, Volume, live_cost
from dlio.stage.planning.simulation import Simulation
from dlio.stage.planning.simulation import timeline as drawn
from dlio.stage.sources.anything import anything


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `auto` would choose on a described cluster, the cost of each strategy there, and while training runs.

    Attributes:
        simulated: how the strategy asked for, or else the chosen one, proceeds in time; None if that was not asked for.
    """

    chosen: Cost
    ways: tuple[Cost, ...]
    live: tuple[LiveCost, ...]
    simulated: Simulation | None = None


def plan(
    dataset: str | PathLike[str] | Manifest,
    *,
    nodes: int,
    local_free: int | None = None,
    source_rate: float | None = None,
    client_rate: float | None = None,
    network_rate: float | None = None,
    local_rate: float | None = None,
    osts: int | None = None,
    copies: int = 1,
    epochs: int = 0,
    strategy: str = "auto",
    machine: str | PathLike[str] = "",
    simulate: bool = False,
    seed: int = 0,
    timeline: str | PathLike[str] | None = None,
) -> Prediction:
    """Returns what it costs to stage a data set on a described cluster.

    Args:
        dataset: as for `dlio.stage`, which also stages files and folders that are no data set.
        nodes: the number of nodes.
        local_free: the room on each, in bytes; by default the machine's, or 1 TiB.
        source_rate, client_rate, network_rate, local_rate: bytes per second from the source to all nodes, to one node,
            from one node to another, and to a node's storage; by default those of `machine`, else those that
            `dlio bench` measured, else those of a typical cluster.
        osts: storage targets of the source; by default the machine's, or enough.
        copies: nodes that hold each shard, in parts.
        epochs: the number planned; 0 if unknown.
        strategy: another one to include, by its dotted path.
        machine: a machine file, or the name of one that is included (dlio/stage/choose/machine_file.py).
        simulate: also simulate the strategy asked for, or the chosen one (`dlio.stage.simulate`).
        seed: of the simulation's stragglers and failures.
        timeline: an SVG file to draw the simulation into; nothing else is written.

    Raises:
        ManifestError, StorageError: it cannot be read, or does not fit.
        UsageError: a number, the strategy or the machine is impossible.
    """
    _check_numbers(nodes=nodes, local_free=local_free or 0, osts=osts or 0, copies=copies, epochs=epochs)
    rates = {"source": source_rate, "client": client_rate, "network": network_rate, "local": local_rate}
    _check_rates(rates)
    if timeline is not None and not simulate:
        raise UsageError("a timeline needs a simulation: give --simulate (simulate=True), too")
    manifest = anything(dataset).manifest
    volume = Volume.of(manifest)
    plain = Machine(nodes, 1 << 40)
    known = machine_file.known(plain, str(machine or ""), manifest, None)
    given: dict[str, Any] = rates | {"free_bytes": local_free, "num_targets": osts}
    cluster = replace(known, **{name: value for name, value in given.items() if value is not None})
    names = [name for name in dict.fromkeys([*strategies.names(), strategy]) if name != strategies.AUTO]
    if volume.is_tree:
        check_tree(manifest, strategy, strategies.needs_of(strategy))
        names = [name for name in names if not strategies.load(name).NEEDS.only_data_sets]
    ways = {name: strategies.cost_of(name, volume, cluster, copies) for name in names}
    kept = {} if volume.is_tree else {"replicate": volume.num_bytes, "partition": ways["partition"].bytes_per_node}
    live = tuple(live_cost(name, volume, num_bytes, cluster) for name, num_bytes in kept.items())
    chosen = choose(volume, cluster, epochs)
    simulated_one = chosen.strategy if strategy == strategies.AUTO else strategy
    found = run_through(manifest, cluster, simulated_one, copies=copies, seed=seed) if simulate else None
    if timeline is not None and found is not None:
        with storage_errors("write", Path(timeline)):
            Path(timeline).write_text(drawn(found))
    return Prediction(chosen, tuple(way.on(cluster) for way in ways.values()), live, found)


def _check_rates(rates: dict[str, float | None]) -> None:
    for name, rate in rates.items():
        if rate is not None and not (isinstance(rate, int | float) and 0 < rate < inf):
            raise UsageError(f"{name}_rate={rate!r}: expected bytes per second, more than 0")


def _check_numbers(**numbers: object) -> None:
    """Raises UsageError for what is not a whole number from 0; from 1 for nodes and copies."""
    for name, number in numbers.items():
        least = 1 if name in ("nodes", "copies") else 0
        if not isinstance(number, int) or number < least:
            raise UsageError(f"{name}={number!r}: expected a whole number >= {least}")
