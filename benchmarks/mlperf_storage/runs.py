"""Runs of the DLIO benchmark in their own processes, and what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
PEERS = Path(sys.prefix, "peers")  # tools/setup.sh puts the benchmark there


@dataclass(frozen=True, slots=True)
class Found:
    """What a run found, over all epochs but the first, which starts processes.

    Attributes:
        utilization: of the accelerators, 0 to 1: the median.
        rate: samples a second of all ranks: the median.
        cpu: CPU seconds of a sample: the median.
    """

    utilization: float
    rate: float
    cpu: float


class FailedError(Exception):
    """A run that did not end well; holds what it wrote last."""


@dataclass(frozen=True, slots=True)
class Way:
    """A loader, in the benchmark.

    Attributes:
        name: in the table.
        loader: its class, None for the benchmark's own.
        environment: the variables that it reads.
    """

    name: str
    loader: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """The words of the configuration that name it."""
        reader = "+workload.reader.data_loader_"
        return [f"{reader}classname={self.loader}", f"{reader}sampler=iterative"] if self.loader else []


def run(words: Sequence[str], batch_size: int, way: Way, ranks: int = 1) -> Found:
    """Returns what a training run found.

    Raises:
        FailedError: the run failed.
    """
    out = Path(next(word.partition("=")[2] for word in words if word.startswith("hydra.run.dir=")))
    lines = run_benchmark([*words, "++workload.workflow.train=True", *way.words], way.environment, ranks)
    epochs = [json.loads(line) for line in lines if line.startswith("{")]
    metric = json.loads((out / "summary.json").read_text())["metric"]
    return Found(
        median(metric["train_au_percentage"][1:]) / 100,
        median(metric["train_throughput_samples_per_second"][1:]),
        median(epoch["cpu"] / epoch["steps"] / batch_size for epoch in epochs[1:]),
    )


def run_benchmark(words: Sequence[str], environment: dict[str, str], ranks: int) -> list[str]:
    """Returns the lines that the benchmark wrote; raises FailedError."""
    python = [sys.executable, "-W", "ignore", "-m", "benchmarks.mlperf_storage.child"]
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []
    path = [str(ROOT), str(PEERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = environment | {"PYTHONPATH": os.pathsep.join(path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = f"{Path(__file__).with_name('bin')}:{os.environ['PATH']}"
    command = [*launcher, *python, *words]
    ended = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, cwd=ROOT, check=False)
    if ended.returncode:
        raise FailedError("\n".join(f"{ended.stdout}\n{ended.stderr}".strip().splitlines()[-12:]))
    return ended.stdout.splitlines()
