"""Charts as inline SVG; their colours are those of the page, light or dark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dlio.look.page.html import text

_WIDTH, _LABEL, _LINE = 560, 170, 18
_BINS = 40


def bars(entries: Sequence[tuple[str, int]]) -> str:
    """Returns horizontal bars, a line for each entry."""
    most = max((number for _, number in entries), default=0) or 1
    lines = []
    for index, (name, number) in enumerate(entries):
        middle, length = index * _LINE + 13, (_WIDTH - _LABEL - 70) * number / most
        short = name if len(name) <= 26 else f"{name[:25]}…"
        label = f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end">{text(short)}</text>'
        bar = f'<rect class="bar" x="{_LABEL}" y="{middle - 11}" width="{length:.1f}" height="13" rx="2"/>'
        lines.append(f'{label}{bar}<text class="soft" x="{_LABEL + length + 6:.1f}" y="{middle}">{number:,}</text>')
    return _svg(_WIDTH, len(entries) * _LINE + 4, lines)


def histogram(values: npt.NDArray[np.int64], unit: str) -> str:
    """Returns how many of the values, all at least 0, lie in each of some ranges of equal length."""
    counts, edges = np.histogram(values, bins=_BINS)
    return _columns(counts, f"{edges[0]:,.0f} {unit}", f"{edges[-1]:,.0f} {unit}")


def columns(values: npt.NDArray[np.int64]) -> str:
    """Returns a column for each value; neighbours share one, of their mean, if there are many."""
    shown = np.array([part.mean() for part in np.array_split(values, min(len(values), 120))])
    return _columns(shown, "first", "last")


def _columns(values: npt.NDArray[np.generic], low: str, high: str) -> str:
    height, width = 110, 420
    numbers = values.astype(np.float64)
    step, most = width / len(numbers), numbers.max() or 1.0
    parts = [
        f'<rect class="bar" x="{index * step:.1f}" y="{16 + height * (1 - number / most):.1f}" '
        f'width="{max(0.5, step * 0.86):.1f}" height="{height * number / most:.1f}"/>'
        for index, number in enumerate(numbers.tolist())
    ]
    parts.append(f'<line class="axis" x1="0" x2="{width}" y1="{height + 16}" y2="{height + 16}"/>')
    parts.append(f'<text class="soft" x="0" y="10">{most:,.0f}</text><text x="0" y="{height + 32}">{text(low)}</text>')
    parts.append(f'<text x="{width}" y="{height + 32}" text-anchor="end">{text(high)}</text>')
    return _svg(width, height + 38, parts)


def shapes(sizes: npt.NDArray[np.int64]) -> str:
    """Returns a chart of widths and heights: squares, darker for more images.

    Args:
        sizes: height and width; int64 of shape (n, 2).
    """
    side, tall, wide = 300, int(sizes[:, 0].max()), int(sizes[:, 1].max())
    counts, _, _ = np.histogram2d(sizes[:, 1], sizes[:, 0], bins=_BINS, range=((0, wide + 1), (0, tall + 1)))
    step, most = side / _BINS, counts.max()
    parts = [f'<path class="axis" fill="none" d="M40 10V{side + 10}H{side + 40}"/>']
    for x, y in np.argwhere(counts).tolist():
        left, top = 40 + x * step, 10 + side - (y + 1) * step
        strength = 0.25 + 0.75 * float(np.log1p(counts[x, y]) / np.log1p(most))
        square = f'x="{left:.1f}" y="{top:.1f}" width="{step:.1f}" height="{step:.1f}"'
        parts.append(f'<rect class="bar" opacity="{strength:.2f}" {square}/>')
    parts.append(
        f'<text x="34" y="18" text-anchor="end">{tall}</text><text x="34" y="{side + 10}" text-anchor="end">0</text>'
    )
    parts.append(f'<text x="{side + 40}" y="{side + 26}" text-anchor="end">{wide}</text>')
    parts.append(f'<text class="soft" x="44" y="{side + 26}">width (pixels) →</text>')
    parts.append('<text class="soft" x="46" y="18">↑ height</text>')
    return _svg(side + 44, side + 32, parts)


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    view = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {view}>{"".join(parts)}</svg>'
