"""Writes the tables of docs/performance.md from `benchmarks/results/`: `python -m tools.site.performance`.

A table stands between `<!-- table FILE: TITLE -->` and `<!-- end of table -->`; FILE is a result without its suffix.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.results import Result, Table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"<!-- table (\S+): (.*?) -->\n.*?\n<!-- end of table -->", re.DOTALL)


def filled(page: str) -> str:
    """Returns a page with all its marked tables as the results have them."""

    def made(mark: re.Match[str]) -> str:
        return f"<!-- table {mark[1]}: {mark[2]} -->\n\n{_table(mark[1], mark[2]).markdown()}\n\n<!-- end of table -->"

    return MARKED.sub(made, page)


def _table(name: str, title: str) -> Table:
    """Returns the table of a title; raises KeyError where there is none."""
    tables = {table.title: table for table in Result.read(RESULTS / f"{name}.json").tables}
    return tables[title]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
