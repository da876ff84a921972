"""Writes the marked tables of docs/performance.md and benchmarks/NOTES.md from `benchmarks/results/`.

Run it as `python -m tools.site.performance`.

A table stands between `<!-- table FILE: TITLE -->` and `<!-- end of table -->`; FILE is a result without its suffix, or
several results, whose rows follow one another. `(columns 1 2 5)` after the title leaves out the others. Between
`<!-- loads -->` and `<!-- end of loads -->` stands the load of each benchmark that a table of the page comes from.
"""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from benchmarks.results import Result, Table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
NOTES = ROOT / "benchmarks" / "NOTES.md"
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(
    r"<!-- table ([^:\n]+): (.*?)(?: \(columns ([ 0-9]+)\))? -->\n.*?\n<!-- end of table -->", re.DOTALL
)
LOADS = re.compile(r"(<!-- loads -->).*?(<!-- end of loads -->)", re.DOTALL)


def filled(page: str) -> str:
    """Returns a page with all its marked tables as the results have them."""

    def made(mark: re.Match[str]) -> str:
        head = mark[0].partition("\n")[0]
        table = _chosen(_table(mark[1].split(), mark[2]), mark[3])
        return f"{head}\n\n{table.markdown()}\n\n<!-- end of table -->"

    return LOADS.sub(lambda mark: f"{mark[1]}{loads(page)}{mark[2]}", MARKED.sub(made, page))


def loads(page: str) -> str:
    """Returns the lowest and highest load of each benchmark that the tables of a page come from, with its date."""
    found: dict[str, list[float]] = {}
    for name in sorted({name for mark in MARKED.finditer(page) for name in mark[1].split()}):
        machine = Result.read(RESULTS / f"{name}.json").machine
        for source in str(machine.get("made", name)).removeprefix("from ").split(", "):
            benchmark, year, month, day, *_ = source.split("-")
            label = f"{benchmark} of {date(int(year), int(month), int(day)):%-d %B}"
            found.setdefault(label, []).extend(Result.read(RESULTS / f"{source}.json").machine.get("load", ()))
    return ", ".join(f"{label} {min(seen):g} to {max(seen):g}" for label, seen in found.items() if seen)


def _chosen(table: Table, columns: str | None) -> Table:
    """Returns some columns of a table, numbered from 1; all if None."""
    if columns is None:
        return table
    head, *rows = ([cells[int(number) - 1] for number in columns.split()] for cells in (table.head, *table.rows))
    return Table(table.title, head, rows)


def _table(names: list[str], title: str) -> Table:
    """Returns the rows of one or several tables of a title; raises KeyError where a result has none."""
    found = [_of_result(name, title) for name in names]
    assert all(table.head == found[0].head for table in found), f"{names} have other columns under {title!r}"
    return Table(title, found[0].head, [row for table in found for row in table.rows])


def _of_result(name: str, title: str) -> Table:
    return {table.title: table for table in Result.read(RESULTS / f"{name}.json").tables}[title]


if __name__ == "__main__":
    for path in (PAGE, NOTES):
        path.write_text(filled(path.read_text()))
