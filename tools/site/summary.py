"""Makes `benchmarks/results/summary-2026-11.json` from other results: `python -m tools.site.summary`.

The first table of docs/performance.md. Its lines come from the tables of loaders and packing. Those of benchmarks whose
runs were not kept as files stand in `stated-2026-11.json`, as the page stated them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.results import Result, Table
from tools.site.performance import RESULTS

LOADERS, PACKING, STATED, SUMMARY = (f"{name}-2026-11" for name in ("loaders", "pack", "stated", "summary"))
RATE, CPU, FIRST, MEMORY = "images/s", "CPU us an image", "first batch, s", "memory, MB"


def number(text: str) -> float:
    """Returns the number that a cell begins with."""
    return float(text.split()[0].replace(",", ""))


def shown(least: float, most: float, digits: int) -> str:
    """Returns a range, or the number that it is."""
    low, high = f"{least:,.{digits}f}", f"{most:,.{digits}f}"
    return low if low == high else f"{low} to {high}"


def column(table: Table, name: str) -> dict[str, float]:
    """Returns the numbers of a column by the way that they are of."""
    at = table.head.index(name)
    return {row[0]: number(row[at]) for row in table.rows}


def peers(values: dict[str, float]) -> dict[str, float]:
    """Returns the values of other loaders than dlio's."""
    return {way: value for way, value in values.items() if not way.startswith("dlio")}


def of_loaders(jpeg: Table, png: Table) -> list[list[str]]:
    """Returns the lines on loaders."""
    rate, cpu, first, memory = (column(jpeg, name) for name in (RATE, CPU, FIRST, MEMORY))
    small = column(png, RATE)
    best, best_small = (max(peers(values).items(), key=lambda item: item[1]) for values in (rate, small))
    milliseconds = {way: f"{value / 1e3:.2f} ms" for way, value in cpu.items()}
    least = min(peers(cpu).values())
    return [
        [
            "JPEGs of 92 KB, cropped to 224, images a second on 2 cores",
            f"{rate['dlio']:,.0f}; crop-ready {rate['dlio, crop-ready']:,.0f}",
            f"best peer ({best[0]}): {best[1]:,.0f}",
        ],
        [
            "CPU time of such an image",
            f"{milliseconds['dlio']}; crop-ready {milliseconds['dlio, crop-ready']}",
            f"{least / 1e3:.2f} ms",
        ],
        [
            "PNGs of 32 x 32, images a second",
            f"{small['dlio']:,.0f}",
            f"best peer ({best_small[0]}): {best_small[1]:,.0f}",
        ],
        ["time to the first batch of 256", f"{first['dlio']:.2f} s", f"{_around(peers(first), 2)} s"],
        ["memory of a loader's process", f"{memory['dlio']:.0f} MB", f"{_around(peers(memory), 0)} MB"],
    ]


def of_packing(table: Table) -> list[list[str]]:
    """Returns the lines on packing; the first row is that of `tar cf`, and the columns come twice."""
    lines = []
    for name, at in (("JPEGs of 92 KB, two workers", 1), ("PNGs of 1.8 KB", 4)):
        rates, ratios = ([number(row[at + more]) for row in table.rows[1:]] for more in (0, 2))
        tar, peer = shown(min(rates), max(rates), 2), shown(min(ratios), max(ratios), 1)
        lines.append([f"packing {name}", f"{tar} times `tar cf`", f"{peer} times the formats' own packers"])
    return lines


def _around(values: dict[str, float], digits: int) -> str:
    return shown(min(values.values()), max(values.values()), digits)


def summary() -> Result:
    """Returns the table with its lines, computed and stated."""
    loaders, packing, stated = (Result.read(RESULTS / f"{name}.json") for name in (LOADERS, PACKING, STATED))
    rows: Sequence[list[str]] = [*of_loaders(*loaders.tables), *of_packing(*packing.tables), *stated.tables[0].rows]
    table = Table("What to expect", stated.tables[0].head, list(rows))
    made = {"made": f"from {LOADERS}, {PACKING} and {STATED}"}
    return replace(stated, name="summary", machine=made, tables=[table])


if __name__ == "__main__":
    path = RESULTS / f"{SUMMARY}.json"
    path.unlink(missing_ok=True)
    summary().write(RESULTS)
