"""What a schedule did: as text, and as a picture of its nodes over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from dlio.io.sizes import format_size
from tools.simulate.faults import SOURCE, VERSION, Schedule
from tools.simulate.oracle import Violation
from tools.simulate.scheduler import S

_LINES = 60  # of a trace that are shown: the last ones
_WIDTH, _LEFT, _ROW, _TOP = 1200, 90, 26, 40  # pixels
_COLORS = {
    "kill": "#c62828",
    "power": "#6a1b9a",
    "pause": "#ef6c00",
    "broken": "#d50000",
    "named": "#2e7d32",
    "finished": "#1b5e20",
    "error": "#ad1457",
    "connect": "#90a4ae",
    "reset": "#5d4037",
}
_OTHER = "#1565c0"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a schedule.

    Attributes:
        schedule: that was run.
        digest: of the trace, 32 hexadecimal digits.
        events: how many there were.
        ns: of virtual time that passed.
        violations: broken promises.
        trace: its lines; empty if they were not kept.
        source_bytes: read from the source.
        total_bytes: of the data set.
        delivered_bytes: that loaders got.
        errors: that loaders and commands got.
    """

    schedule: Schedule
    digest: str
    events: int
    ns: int
    violations: tuple[Violation, ...] = ()
    trace: Sequence[str] = ()
    source_bytes: int = 0
    total_bytes: int = 0
    delivered_bytes: int = 0
    errors: tuple[str, ...] = ()


def lines_of(result: Result) -> Iterator[str]:
    """Yields what is printed of one schedule."""
    schedule, share = result.schedule, result.source_bytes / max(1, result.total_bytes)
    counts = f"{schedule.nodes} nodes, {schedule.files} files, {len(schedule.faults)} faults"
    yield f"seed {schedule.seed}@{VERSION}: {counts}"
    yield from (f"  {fault}" for fault in schedule.faults)
    yield (
        f"{result.events:,} events in {result.ns / S:.3f} s of virtual time; {share:.3f} times the data set read from "
        f"the source; delivered {format_size(result.delivered_bytes)}; {len(result.errors)} errors"
    )
    yield f"trace {result.digest}"
    if result.violations:
        yield from result.trace[-_LINES:]
        yield from (f"BROKEN: {violation}" for violation in result.violations)
        yield f"again: python -m tools.simulate --seed {schedule.seed}@{VERSION} --nodes {schedule.nodes} --shrink"
    else:
        yield "all promises were kept"


def summary(results: Iterable[Result]) -> Iterator[str]:
    """Yields what is printed of many schedules: how many had which fault, and which promises were broken."""
    kinds, broken, events, count, seconds = Counter[str](), Counter[str](), 0, 0, 0
    for result in results:
        count, events, seconds = count + 1, events + result.events, seconds + result.ns
        kinds.update({fault.kind for fault in result.schedule.faults} or {"none"})
        broken.update({violation.promise for violation in result.violations})
    yield f"{count:,} schedules, {events:,} events, {seconds / S / 3600:.1f} h of virtual time"
    yield from (f"  {number:9,} with {kind}" for kind, number in sorted(kinds.items()))
    yield from (f"  {number:9,} BROKE {promise}" for promise, number in sorted(broken.items()))


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at one instant of one node, for the picture."""

    at: int
    node: int
    kind: str
    text: str


def marks(trace: Sequence[str]) -> Iterator[Mark]:
    """Yields what the picture shows of a trace: lines with the time, the task, and what happened."""
    for line in trace:
        at, who, *fields = line.split(" ")
        if not fields or not at.isdigit():
            continue
        kind, node = fields[0], _node(who)
        if kind == "disk" and len(fields) > 2:
            node, kind = _node(fields[1].removeprefix("node")), fields[2]
        elif node is None and len(fields) > 1:
            node = _node(fields[1].removeprefix("node"))
        yield Mark(int(at), SOURCE if node is None else node, kind, line)


def _node(text: str) -> int | None:
    first = text.partition(".")[0].partition("/")[0]
    return int(first) if first.isdigit() else None


def as_svg(result: Result) -> str:
    """Returns a picture: a row for each node, faults that last as bars, and what happened as ticks with their text."""
    span, nodes = max(1, result.ns), result.schedule.nodes
    height = _TOP + _ROW * (nodes + 1) + 30

    def x(ns: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 20) * min(ns, span) / span, 1)

    def y(node: int) -> int:
        return _TOP + _ROW * (node if 0 <= node < nodes else nodes)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20">seed {result.schedule.seed}@{VERSION}: {span / S:.3f} s of virtual time</text>',
    ]
    for node in range(nodes + 1):
        name = "source" if node == nodes else f"node {node}"
        parts.append(f'<text x="8" y="{y(node) + 16}">{name}</text>')
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y(node) + 12}" y2="{y(node) + 12}" stroke="#cfd8dc"/>'
        )
    for fault in result.schedule.faults:
        width = max(3.0, x(fault.at + fault.lasts) - x(fault.at))
        color = _COLORS.get(fault.kind, _OTHER)
        parts.append(
            f'<rect x="{x(fault.at)}" y="{y(fault.node) + 2}" width="{width:.1f}" height="{_ROW - 6}" fill="{color}" '
            f'opacity="0.25"><title>{escape(str(fault))}</title></rect>'
        )
    for mark in marks(result.trace):
        color = _COLORS.get(mark.kind, _OTHER)
        parts.append(
            f'<line x1="{x(mark.at)}" x2="{x(mark.at)}" y1="{y(mark.node) + 4}" y2="{y(mark.node) + _ROW - 6}" '
            f'stroke="{color}"><title>{escape(mark.text)}</title></line>'
        )
    for step in range(6):
        at = span * step // 5
        parts.append(f'<text x="{x(at)}" y="{height - 8}" text-anchor="middle">{at / S:.1f} s</text>')
    return "\n".join([*parts, "</svg>\n"])
