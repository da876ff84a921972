"""The benchmark's report: a table for each task, and dlio's targets compared with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.loaders.processes import Failure
from benchmarks.loaders.tasks import Task

Runs = Sequence[Mapping[str, Any]]
HEADER = (
    "| way | version | CPU us an image | x dlio | images/s | x dlio | first batch, s | memory, MB |\n"
    "|---|---|---|---|---|---|---|---|"
)
DLIO, CROP_READY, DECODE_READY, TORCH = "dlio", "dlio, crop-ready", "dlio, decode-ready", "dlio.loaders.torch"
BARE = ("bare LMDB loop", "bare mmap copy loop")


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of a way's runs.

    Attributes:
        cpu, wall: seconds of an image.
        first: seconds from construction to the first batch.
        memory: bytes.
        version: of the package.
    """

    cpu: float
    wall: float
    first: float
    memory: float
    version: str

    @classmethod
    def of(cls, runs: Runs) -> Figures:
        """Returns the medians of some runs."""
        names = ("cpu", "wall", "first", "memory")
        return cls(*(median(run[name] for run in runs) for name in names), runs[0]["version"])  # type: ignore[arg-type]


def task_table(task: Task, figures: Mapping[str, Figures], failures: Mapping[str, Failure]) -> str:
    """Returns a task's table, the cheapest way first, and under it what could not be run and why."""
    lines = [f"### {task.title}", "", HEADER]
    dlio = figures.get(DLIO)
    for name, way in sorted(figures.items(), key=lambda item: item[1].cpu):
        cpu, wall = (f"{way.cpu / dlio.cpu:.2f}", f"{dlio.wall / way.wall:.2f}") if dlio else ("", "")
        rest = f"{1 / way.wall:,.0f} | {wall} | {way.first:.2f} | {way.memory / 1e6:.0f} |"
        lines.append(f"| {name} | {way.version} | {way.cpu * 1e6:,.1f} | {cpu} | {rest}")
    lines += [f"| {name} | not run: {failure.reason[:120]} | | | | | | |" for name, failure in failures.items()]
    return "\n".join([*lines, ""])


def targets(tables: Mapping[str, Mapping[str, Figures]], rank: Mapping[str, float]) -> str:
    """Returns a line for each target: the figure, and what it should be; ratios by CPU time, and by the clock."""
    lines = ["| target | measured | wanted |", "|---|---|---|"]
    lines += _ratio("decode-ready, images a CPU second / best peer's", tables.get("jpeg", {}), DECODE_READY, 3.0)
    lines += _ratio("crop-ready, images a CPU second / best peer's", tables.get("jpeg", {}), CROP_READY, 2.8)
    lines += _ratio("JPEG as it is, images a CPU second / best peer's", tables.get("jpeg", {}), DLIO, 1.9)
    recipe = tables.get("recipe", {})
    lines += _ratio("torchvision's recipe, images a CPU second / torch's DataLoader's", recipe, TORCH, 2.5)
    lines += _ratio("small PNGs, images a CPU second / best peer's", tables.get("png", {}), DLIO, 1.8)
    for name in ("raw-sequential", "raw-shuffled"):
        found = tables.get(name, {})
        lines += _ratio(f"{name}, records a CPU second / best peer's", found, DLIO, 2.0)
        if DLIO in found and BARE[1] in found:
            cpu, wall = found[BARE[1]].cpu / found[DLIO].cpu, found[BARE[1]].wall / found[DLIO].wall
            measured = f"{cpu:.2f}; by the clock {wall:.2f}"
            lines.append(f"| {name}, records a CPU second / bare mmap copy loop's | {measured} | at least 0.9 |")
    for name, way in tables.get("jpeg", {}).items():
        if name in (DLIO, CROP_READY, DECODE_READY):
            lines.append(f"| {name}: first batch after construction | {way.first:.2f} s | below 0.15 s |")
    if rank:
        lines.append(f"| memory, batch 256: epoch 1 | {rank['memory_first']:.0f} MB | at most 250 MB |")
        lines.append(f"| memory, batch 256: epoch 5 | {rank['memory_last']:.0f} MB | the same |")
        lines.append(f"| emulated accelerator busy (0.224 s a batch of 400) | {rank['busy']:.1%} | at least 95% |")
        lines.append(f"| 2 threads / 1 thread, by the clock | {rank['speedup']:.2f} | at least 1.85 |")
    return "\n".join(["### Targets", "", *lines, ""])


def _ratio(title: str, found: Mapping[str, Figures], name: str, wanted: float) -> list[str]:
    peers = {peer: way for peer, way in found.items() if not peer.startswith("dlio") and peer not in BARE}
    if not peers or name not in found:
        return []
    best, quickest = min(peers, key=lambda peer: peers[peer].cpu), min(peers, key=lambda peer: peers[peer].wall)
    cpu, wall = peers[best].cpu / found[name].cpu, peers[quickest].wall / found[name].wall
    return [f"| {title} ({best}) | {cpu:.2f}; by the clock {wall:.2f} ({quickest}) | at least {wanted} |"]
