"""Draws docs/peers-*.svg from the results of `python -m benchmarks loaders`: `python -m tools.site.chart`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Result, Table
from tools.site.performance import RESULTS
from tools.site.summary import CPU, FROM, JPEG, PNG, column

DOCS = Path(__file__).parents[2] / "docs"
#: The title of the table of each chart, and the chart's title.
CHARTS = {
    "jpeg": (JPEG, "Images that one core loads in a second: JPEGs of 92 KB, cropped to 224"),
    "png": (PNG, "Images that one core loads in a second: PNGs of 32 x 32"),
}
_BAR, _LEFT, _WIDTH, _TOP = 26, 232, 420, 44
_STYLE = """
  text { font: 14px "DejaVu Sans", Verdana, sans-serif; fill: #1d2733 } .title { font-weight: bold }
  .own { font-weight: bold } .bar { fill: #a9b4c0 } .bar.own { fill: #0b5cad } .back { fill: #fff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e2e6ec } .bar { fill: #5c6773 } .bar.own { fill: #5aa9f0 } .back { fill: #1e2129 }
  }
"""


def rates(table: Table) -> list[tuple[str, int]]:
    """Returns the way and the images in a second of CPU time of each row of a table, most first."""
    found = [(way, round(1e6 / cpu)) for way, cpu in column(table, CPU).items()]
    return sorted(found, key=lambda pair: -pair[1])


def drawn(title: str, bars: Sequence[tuple[str, int]]) -> str:
    """Returns an SVG of horizontal bars; those of dlio stand out."""
    height, most = _TOP + _BAR * len(bars) + 8, max(rate for _, rate in bars)
    lines = [_bar(name, rate, rate / most, _TOP + _BAR * place) for place, (name, rate) in enumerate(bars)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {height}" role="img" aria-label="{title}">'
    back = f'<rect class="back" width="740" height="{height}" rx="6"/>'
    return "\n".join(
        [head, f"<style>{_STYLE}</style>", back, _text("title", 12, 26, "start", title), *lines, "</svg>\n"]
    )


def _bar(name: str, rate: int, share: float, top: int) -> str:
    kind, length = "own" if re.match(r"dlio\b", name) else "", round(share * _WIDTH, 1)
    label = _text(kind, _LEFT - 8, top + 16, "end", name)
    figure = _text(kind, _LEFT + length + 6, top + 16, "start", f"{rate:,}")
    return f'{label}<rect class="bar {kind}" x="{_LEFT}" y="{top + 2}" width="{length}" height="{_BAR - 8}"/>{figure}'


def _text(kind: str, x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def charts() -> dict[Path, str]:
    """Returns the drawing of each chart by its path."""
    tables = {table.title: table for table in Result.read(RESULTS / f"loaders-{FROM['loaders']}.json").tables}
    return {DOCS / f"peers-{name}.svg": drawn(title, rates(tables[of])) for name, (of, title) in CHARTS.items()}


if __name__ == "__main__":
    for path, drawing in charts().items():
        path.write_text(drawing)
