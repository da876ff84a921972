"""A picture of a schedule: its processes and what happened to them over virtual time, from the trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from tools.simulate.scheduler import S

_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 1200, 90, 28, 36, 30  # pixels
_SHARED = -1  # instead of a node: what all nodes see
_COLORS = {
    "kill": "#c62828",
    "power": "#6a1b9a",
    "cut": "#ef6c00",
    "stop": "#ef6c00",
    "broken": "#d50000",
    "named": "#2e7d32",
    "finished": "#1b5e20",
    "error": "#ad1457",
    "fails": "#ad1457",
    "reset": "#5d4037",
    "connect": "#b0bec5",
}
_OTHER = "#1565c0"
_PROCESS = re.compile(r"(\d+)\.\d+\.\d+")
_NODE = re.compile(r"(?:node)?(\d+)")


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one instant, and where."""

    at: int
    node: int
    kind: str
    line: str


@dataclass(slots=True)
class Life:
    """A process, between the first and the last time that the trace names it."""

    node: int
    begin: int
    end: int
    is_killed: bool = field(default=False)


def marks(trace: Sequence[str]) -> Iterator[Mark]:
    """Yields what happened, from lines of a trace: ns, the task, what happened, and more about it."""
    for line in trace:
        at, _, rest = line.partition(" ")
        who, _, what = rest.partition(" ")
        if at.isdigit() and what and who != "log":
            kind, *fields = what.split(" ")
            if kind == "disk" and len(fields) > 1:
                found, kind = _NODE.fullmatch(fields[0]), fields[1]
            else:
                found = _PROCESS.match(who) or (_NODE.match(fields[0]) if fields else None)
            yield Mark(int(at), int(found[1]) if found else _SHARED, kind, line)


def lives(trace: Sequence[str]) -> dict[str, Life]:
    """Returns the processes that a trace names."""
    found: dict[str, Life] = {}
    for line in trace:
        at, *rest = line.split(" ")
        for text in rest if at.isdigit() else ():
            if name := _PROCESS.match(text):
                life = found.setdefault(name[0], Life(int(name[1]), int(at), int(at)))
                life.end = int(at)
                life.is_killed = life.is_killed or "kill" in rest
    return found


def as_svg(title: str, trace: Sequence[str]) -> str:
    """Returns the picture: a row for each node, its processes as bars, and what happened as ticks with their lines."""
    shown, processes = list(marks(trace)), lives(trace)
    nodes = 1 + max([mark.node for mark in shown] + [life.node for life in processes.values()], default=0)
    span = max([1, *(mark.at for mark in shown)])
    height = _TOP + _ROW * (nodes + 1) + _BOTTOM

    def x(ns: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 20) * ns / span, 1)

    def y(node: int) -> int:
        return _TOP + _ROW * (nodes if node == _SHARED else node)

    parts = [f'<text x="{_LEFT}" y="20">{escape(title)}</text>']
    for node in range(nodes + 1):
        name = "shared" if node == nodes else f"node {node}"
        parts.append(f'<text x="8" y="{y(node) + 18}">{name}</text>')
    for name, life in processes.items():
        parts.append(
            f'<rect x="{x(life.begin)}" y="{y(life.node) + 8}" width="{max(1.0, x(life.end) - x(life.begin)):.1f}" '
            f'height="{_ROW - 16}" fill="#90caf9" opacity="0.4"><title>process {name}</title></rect>'
        )
    parts += [
        f'<line x1="{x(mark.at)}" x2="{x(mark.at)}" y1="{y(mark.node) + 4}" y2="{y(mark.node) + _ROW - 4}" '
        f'stroke="{_COLORS.get(mark.kind, _OTHER)}"><title>{escape(mark.line)}</title></line>'
        for mark in shown
    ]
    for step in range(6):
        at = span * step // 5
        parts.append(f'<text x="{x(at)}" y="{height - 10}" text-anchor="middle">{at / S:.1f} s</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{_WIDTH}" height="{height}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
