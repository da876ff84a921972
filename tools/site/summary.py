"""Makes `benchmarks/results/summary-DATE.json` from other results: `python -m tools.site.summary`.

Tables of docs/performance.md that are computed from tables that a benchmark printed: what to expect, loaders with all
tasks in one row, and MLPerf Storage's workloads with all loaders in one row.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results import Result, Table
from tools.site.performance import RESULTS

#: The results, by name, and the date of each.
FROM = dict.fromkeys(("loaders", "pack", "slow_pack", "stage", "squashfs"), "2026-11-28")
FROM |= {"loaders": "2026-11-27"}
DATE = max(FROM.values())
MLPERF = "mlperf_storage-2026-11-27"
CPU, MEMORY = "CPU us an image", "memory, MB"
JPEG = "JPEGs of 92 KB, RandomResizedCrop(224) and flip"
PNG = "PNGs of 32 x 32, RandomResizedCrop(32) and flip"
STORED = "Records of 92 KB as they are stored, shuffled"
ORDERED = "Records of 92 KB as they are stored, in order"
Tables = dict[str, Table]
Line = list[str]


def number(text: str) -> float:
    """Returns the number that a cell begins with."""
    return float(text.split()[0].replace(",", ""))


def shown(values: Sequence[float], digits: int) -> str:
    """Returns the range of values, or the number that it is."""
    low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def column(table: Table, name: str) -> dict[str, float]:
    """Returns the numbers of a column by the first cell of their rows; empty cells are left out."""
    at = table.head.index(name)
    return {row[0]: number(row[at]) for row in table.rows if row[at]}


def peers(values: dict[str, float]) -> dict[str, float]:
    """Returns the values of other loaders than dlio's, without bare loops."""
    return {way: value for way, value in values.items() if not way.startswith(("dlio", "bare"))}


def of_loaders(tables: Tables) -> list[Line]:
    """Returns the lines on loaders."""
    cpu, memory = (column(tables[JPEG], name) for name in (CPU, MEMORY))
    small, stored = (column(tables[title], CPU) for title in (PNG, STORED))

    def compared(title: str, values: dict[str, float], unit: float, name: str) -> Line:
        best = min(peers(values), key=values.__getitem__)
        return [
            f"CPU time of {title}",
            f"{values['dlio'] / unit:.2f} {name}",
            f"{best}: {values[best] / unit:.2f} {name}",
        ]

    jpeg = compared("a JPEG of 92 KB, cropped to 224", cpu, 1e3, "ms")
    jpeg[1] += "".join(f"; {way} {cpu[f'dlio, {way}'] / 1e3:.2f} ms" for way in ("crop-ready", "decode-ready"))
    return [
        jpeg,
        compared("a PNG of 32 x 32, cropped", small, 1, "us"),
        compared("a stored record of 92 KB, shuffled", stored, 1, "us"),
        ["memory of a loader's processes", f"{memory['dlio']:.0f} MB", f"{shown([*peers(memory).values()], 0)} MB"],
    ]


def of_packing(tables: Tables) -> list[Line]:
    """Returns the lines on packing."""
    lines = []
    for name, what in (("big", "a JPEG of 92 KB"), ("small", "a PNG of 1.8 KB")):
        cpu = column(tables[f"Packing: {name}"], CPU)
        ours, others = ([cpu[way] for way in cpu if way.startswith(kind)] for kind in ("dlio", "peer"))
        compared = f"the formats' own packers: {shown(others, 0)} us; `tar cf`: {cpu['tar']:.0f} us"
        lines.append([f"CPU time of packing {what}, in six formats", f"{shown(ours, 0)} us", compared])
    return lines


def of_slow_pack(table: Table) -> Line:
    """Returns the line on packing from slow storage."""
    ours, tar = (column(table, name)["5"] for name in ("dlio", "tar"))
    return ["packing files where each request takes 5 ms", f"{ours:,.0f} a second", f"`tar`: {tar:,.0f}"]


def of_staging(table: Table) -> list[Line]:
    """Returns the lines on staging."""
    found = {row[0].partition(" (")[0]: number(row[1]) for row in table.rows}
    local, slow = found["local: cp / stage"], found["5 ms latency: cp / stage"]
    again = found["second stage of 10,000 files, core ms"]
    return [
        ["staging on local storage, with digests", f"{local:.2f} times as fast", "`cp` and `sync`"],
        ["staging where each request takes 5 ms", f"{slow:.0f} times as fast", "`cp` and `sync`"],
        [
            "broadcast to 4 nodes behind one slow source",
            f"{found['4 nodes: reading all / broadcast']:.1f} times as fast",
            "4 nodes that each read all",
        ],
        ["CPU time of a second stage of 10,000 one-file shards", f"{again:.0f} ms", ""],
    ]


def of_squashfs(tables: Tables) -> Line:
    """Returns the line on loading from an image."""
    big, small = (column(tables[f"Loading from an image: {name}"], "x dlio's CPU time") for name in ("big", "small"))
    mine = f"1/{big['squashfuse_ll']:.0f} of the CPU time; small files 1/{small['squashfuse_ll']:.0f}"
    return ["reading the files of a SquashFS image", mine, "through squashfuse_ll"]


def ways(tables: Tables) -> Table:
    """Returns the table of all loaders: CPU time of each task and its ratio to dlio's, then memory."""
    tasks = {"JPEG": JPEG, "PNG": PNG, "stored, shuffled": STORED, "stored, in order": ORDERED}
    rows = {way: [way, version] for title in tasks.values() for way, version, *_ in tables[title].rows}
    for title in tasks.values():
        cells = {way: f"{cpu} ({ratio})" for way, _, cpu, ratio, *_ in tables[title].rows}
        for way, row in rows.items():
            row.append(cells.get(way, ""))
    memory = column(tables[JPEG], MEMORY)
    found = [[*row, f"{memory[way]:.0f}" if way in memory else ""] for way, row in rows.items()]
    return Table("Loaders compared with their peers", ["way", "version", *tasks, MEMORY], found)


def mlperf(results: Sequence[Result]) -> Table:
    """Returns the table of MLPerf Storage's workloads in one process, page cache warm, with all loaders in one row."""
    found: dict[tuple[str, float, str, str], dict[str, tuple[str, str]]] = {}
    for workload, loader, cache, ranks, emulated, busy, mark, *_, a_core in _rows(results):
        if (cache, ranks) == ("warm", "1"):
            found.setdefault((workload, number(emulated), emulated, mark), {})[loader] = busy, a_core
    head = ["workload", "emulated", "passes at", "AU, at hand", "AU, its own", "AU, dlio"]
    rows = []
    for (workload, _, emulated, mark), loaders in sorted(found.items()):
        if "dlio" in loaders and "at hand" in loaders:
            hand, own, dlio = (loaders.get(name, ("", "")) for name in ("at hand", "its own", "dlio"))
            rows.append([workload, emulated, mark, hand[0], own[0], dlio[0], own[1], dlio[1]])
    return Table("MLPerf Storage's workloads", [*head, "a core, its own", "a core, dlio"], rows)


def _rows(results: Sequence[Result]) -> list[Line]:
    return [row for result in results for table in result.tables for row in table.rows]


def summary() -> Result:
    """Returns the computed tables."""
    storage = {path.stem: Result.read(path) for path in sorted(RESULTS.glob(f"{MLPERF}*.json"))}
    results = {f"{name}-{date}": Result.read(RESULTS / f"{name}-{date}.json") for name, date in FROM.items()}
    loaders, packing, slow, stage, image = ({table.title: table for table in each.tables} for each in results.values())
    lines = [*of_loaders(loaders), *of_packing(packing), of_slow_pack(*slow.values()), *of_staging(*stage.values())]
    table = Table("What to expect", ["you ask", "dlio", "compared with"], [*lines, of_squashfs(image)])
    used = results | storage
    loads = [each for result in used.values() for each in result.machine["load"]]
    made = {"made": f"from {', '.join(used)}", "load": [min(loads), max(loads)]}
    return Result("summary", DATE, [], made, [table, ways(loaders), mlperf([*storage.values()])], [])


if __name__ == "__main__":
    path = RESULTS / f"summary-{DATE}.json"
    path.unlink(missing_ok=True)
    summary().write(RESULTS)
