"""The simulator and published staging times of MLPerf HPC: prints the table of docs/plan.md, and draws its plot.

    python benchmarks/predicted_staging.py [--plot docs/predicted-staging.svg]

mlperf_staging.csv holds the rows: all submissions to MLPerf HPC 0.7 to 3.0 whose logs tell a staging time of a second
or more, in which each node reads its part, or all, from the shared file system. (In others, one instance of several
reads and passes on, which no strategy of dlio does.) `seconds` is the median over the logs in the folder `results` of
https://github.com/mlcommons/hpc_results_v<round>, up to twelve, from the first staging_start to the last staging_stop;
`processes` are those of a node that copy, and `threads` the files that each copies at a time, as the programs in the
folder `benchmarks` of the same repository say (on ABCI, and for oc20 of HelmholtzAI, one process copies; on ABCI and
Fugaku it unpacks archives in round 0.7); `terabytes` are those of the data set as it was read, where that is published,
else unpacked:

    cosmoflow   5.1 in round 0.7; later 8.8 of arrays (samples for training only), or 1.67 compressed
    deepcam     8.2
    oc20        0.3

The machines are those that come with dlio; what their files leave out does not limit. Constants that are the same for
all rows are fitted, each system's to the rows of the others:

    one efficiency of published peaks, or
    the rate of a node that copies one file at a time, and a power by which it grows with their number

For comparison it also prints what constants reach that are fitted to the very rows that they are compared with.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlio.stage.choose.machine_file import described
from dlio.stage.planning.cost import Machine
from dlio.stage.planning.flows import Flows, flows_alone
from dlio.stage.planning.simulation import simulated, svg

ROWS = Path(__file__).with_name("mlperf_staging.csv")
UNLIMITED = 1e18
EFFICIENCIES = np.geomspace(1e-3, 1, 145)  # 5% apart
NODE_RATES, GROWTHS = np.geomspace(2e7, 8e9, 64), (0, 0.25, 0.5, 0.75, 1)  # 10% apart
THREADS = 8
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One submission: its name, system and job, what was measured, and the machine and the flows to simulate.

    Attributes:
        at_a_time: the files that a node copies at a time.
        share: bytes of each node.
    """

    name: str
    system: str
    job: str
    seconds: float
    at_a_time: int
    share: float
    machine: Machine
    flows: Flows

    def predicted(self, node_rate: float) -> float:
        """Returns the simulated seconds, if a node copies no more bytes per second."""
        machine = replace(self.machine, client=min(self.machine.client, node_rate))
        return simulated(self.name, self.flows, machine).seconds


def read_rows() -> list[Row]:
    """Returns the rows of the file."""
    with ROWS.open() as file:
        return [_row(entry) for entry in csv.DictReader(file)]


def _row(entry: dict[str, str]) -> Row:
    nodes, copies = int(entry["nodes"]), int(entry["copies"])
    share = float(entry["terabytes"]) * 1e12 * copies / nodes
    unknown = Machine(nodes, 1, source=UNLIMITED, client=UNLIMITED, network=UNLIMITED, local=UNLIMITED)
    return Row(
        f"{entry['round']} {entry['system']} {nodes:,} {entry['job']} x{copies}",
        entry["system"],
        entry["job"],
        float(entry["seconds"]),
        int(entry["processes"]) * int(entry["threads"]),
        share,
        described(entry["system"], unknown),
        flows_alone(np.full(nodes, share), np.ones(nodes), THREADS),
    )


def by_peaks(rows: Sequence[Row]) -> Array:
    """Returns each row's seconds at an efficiency of the published peaks: (efficiencies, rows)."""
    return np.array([row.predicted(UNLIMITED) for row in rows]) / EFFICIENCIES[:, None]


def by_files(rows: Sequence[Row]) -> Array:
    """Returns each row's seconds if a node's rate grows with the files that it copies at a time: (constants, rows)."""
    constants = product(NODE_RATES, GROWTHS)
    return np.array([[row.predicted(rate * row.at_a_time**growth) for row in rows] for rate, growth in constants])


def fitted(candidates: Array, rows: Sequence[Row]) -> Array:
    """Returns each row's seconds by the constants that suit the rows of other systems best."""
    errors = np.abs(np.log(candidates / [row.seconds for row in rows]))
    systems = np.array([row.system for row in rows])
    best = [errors[:, systems != row.system].mean(axis=1).argmin() for row in rows]
    return candidates[best, np.arange(len(rows))]


def at_own_rates(rows: Sequence[Row], group: Callable[[Row], object]) -> Array:
    """Returns each row's seconds at the rate of a node that suits the rows of its own group best."""
    rates = {key: np.median([row.share / row.seconds for row in rows if group(row) == key]) for key in map(group, rows)}
    return np.array([row.share / rates[group(row)] for row in rows])


def most_within(rows: Sequence[Row], group: Callable[[Row], object]) -> int:
    """Returns the most rows within 60% at one rate of a node for each group, where half of the rows are within 25%."""
    most = {0: 0}  # within 60%, by those within 25%
    for key in set(map(group, rows)):
        own = np.array([row.share / row.seconds for row in rows if group(row) == key])
        rates = np.concatenate(
            [own / (1 + limit) * nudge for limit in (-0.6, -0.25, 0.25, 0.6) for nudge in (1 - 1e-9, 1 + 1e-9)]
        )
        counts = {tuple((np.abs(own / rate - 1) <= limit).sum() for limit in (0.25, 0.6)) for rate in rates}
        sums = [(near + more_near, far + more_far) for near, far in most.items() for more_near, more_far in counts]
        most = {near: max(far for other, far in sums if other == near) for near, _ in sums}
    return int(max(far for near, far in most.items() if near > len(rows) / 2))


def errors(predicted: Array, rows: Sequence[Row]) -> Array:
    """Returns the relative errors."""
    measured = np.array([row.seconds for row in rows])
    return np.abs(predicted - measured) / measured


def plot(rows: Sequence[Row], predicted: Array) -> str:
    """Returns an SVG of predicted over measured seconds, both axes logarithmic from 1 to 2,000 s."""
    size, colours = 420, ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#444444")
    systems = sorted({row.system for row in rows})

    def place(seconds: float) -> float:
        return float(np.clip(np.log(seconds) / np.log(2000), 0, 1)) * size

    def line(factor: float, dashes: str) -> str:
        low, high = max(1.0, 1 / factor), min(2000.0, 2000 / factor)
        ends = f'x1="{60 + place(low):.0f}" y1="{20 + size - place(low * factor):.0f}" x2="{60 + place(high):.0f}"'
        return f'<line {ends} y2="{20 + size - place(high * factor):.0f}" stroke="#888" stroke-dasharray="{dashes}"/>'

    parts = [f'<rect x="60" y="20" width="{size}" height="{size}" fill="none" stroke="#888"/>']
    parts += [line(1, "none"), line(1.6, "4"), line(0.4, "4")]
    for tick in (1, 10, 100, 1000):
        parts.append(f'<text x="{60 + place(tick):.0f}" y="{size + 36}">{tick:,}</text>')
        parts.append(f'<text x="36" y="{24 + size - place(tick):.0f}">{tick:,}</text>')
    parts.append(f'<text x="{60 + size / 2}" y="{size + 54}">measured, s</text>')
    parts.append(f'<text transform="translate(14 {20 + size / 2}) rotate(-90)">predicted, s</text>')
    for row, seconds in zip(rows, predicted, strict=True):
        at = f'cx="{60 + place(row.seconds):.1f}" cy="{20 + size - place(seconds):.1f}"'
        parts.append(
            f'<circle {at} r="4" fill="{colours[systems.index(row.system)]}"><title>{row.name}</title></circle>'
        )
    for number, system in enumerate(systems):
        parts.append(f'<text x="{size + 130}" y="{40 + 18 * number}" fill="{colours[number]}">{system}</text>')
    return svg(size + 200, size + 64, parts)


def main() -> None:
    """Prints the table and the figures below it."""
    parser = argparse.ArgumentParser(description="Compares the simulator with published staging times.")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rows = read_rows()
    by_file = by_files(rows)
    predicted = fitted(by_file, rows)
    print("| round, system, nodes, job, copies | measured, s | predicted, s | error |\n|---|---|---|---|")
    for row, seconds, error in zip(rows, predicted, errors(predicted, rows), strict=True):
        print(f"| {row.name} | {row.seconds:,.1f} | {seconds:,.1f} | {error:.0%} |")
    groups: dict[str, Callable[[Row], object]] = {
        "in the sample, a rate for each system": lambda row: row.system,
        "in the sample, a rate for each system and job": lambda row: (row.system, row.job),
    }
    ways = {
        "published peaks": fitted(by_peaks(rows), rows),
        "and the rate of a node, by its files at a time": predicted,
        **{name: at_own_rates(rows, group) for name, group in groups.items()},
    }
    for name, found in ways.items():
        each = errors(found, rows)
        print(f"{name}: {len(rows)} rows, median {np.median(each):.0%}, 90th percentile {np.percentile(each, 90):.0%}")
    every = [errors(seconds, rows) for seconds in by_file]
    print(
        f"constants for all rows, in the sample: least median {min(map(np.median, every)):.0%}, "
        f"least 90th percentile {min(np.percentile(each, 90) for each in every):.0%}"
    )
    for name, group in groups.items():
        print(f"{name}: at most {most_within(rows, group)} of {len(rows)} within 60%, with half of them within 25%")
    if options.plot:
        options.plot.write_text(plot(rows, predicted))


if __name__ == "__main__":
    main()
