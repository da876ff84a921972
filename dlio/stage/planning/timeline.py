"""The timeline of a simulation as an SVG: the data that have landed, and the nodes that are ready; pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from dlio.stage.planning.simulation import Simulation

_WIDTH, _HEIGHT = 640, 240  # of the plot
_LEFT, _TOP = 50, 40
_CURVES = (("#1f77b4", "data landed"), ("#d95f02", "nodes ready"))


def timeline(found: Simulation) -> str:
    """Returns the SVG's text."""
    title = f"{found.strategy} on {found.num_nodes:,} nodes: {found.seconds:,.1f} s, limited by {found.busiest}"
    ticks = [
        *(_text(_LEFT + x * _WIDTH / 4, _TOP + _HEIGHT + 16, f"{found.seconds * x / 4:,.4g} s") for x in range(5)),
        *(_text(_LEFT - 22, _TOP + _HEIGHT * (1 - y / 2) + 4, f"{50 * y} %") for y in range(3)),
    ]
    curves = [
        f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{_points(found, 1 + number)}"/>'
        + _text(_LEFT + 90 + 160 * number, _TOP - 6, name, colour)
        for number, (colour, name) in enumerate(_CURVES)
    ]
    frame = f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#888"/>'
    return svg(_WIDTH + _LEFT + 40, _HEIGHT + _TOP + 30, [_text(_LEFT + _WIDTH / 2, 16, title), frame, *ticks, *curves])


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """Returns the text of an SVG with these parts, black on white."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" text-anchor="middle"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, colour: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(text)}</text>'


def _points(found: Simulation, column: int) -> str:
    whole = max(found.seconds, 1e-9)
    points = ((each[0] / whole, each[column]) for each in ((0.0, 0.0, 0.0), *found.timeline))
    return " ".join(f"{_LEFT + x * _WIDTH:.1f},{_TOP + (1 - y) * _HEIGHT:.1f}" for x, y in points)
