"""Runs of the DLIO benchmark in processes of their own, and what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import dlio
from benchmarks.mlperf_storage.workloads import Workload

ROOT = Path(__file__).parents[2]
PEERS = Path(sys.prefix, "peers")  # tools/setup.sh puts the benchmark there
_DLIO = (
    "+workload.reader.data_loader_classname=dlio.loaders.dlio_benchmark.DataLoader",
    "+workload.reader.data_loader_sampler=iterative",
)


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


def generate(workload: Workload, data: Path, num_files: int) -> None:
    """Makes the files of a workload by the benchmark's generator, unless they are there."""
    if len(list(data.glob(f"train/*.{workload.format}"))) >= num_files:
        return
    words = workload.overrides(data, data / "generating", num_files, 1)
    _run([*words, "++workload.workflow.generate_data=True", "++workload.workflow.train=False"], {}, 1)


def pack(workload: Workload, data: Path) -> Path:
    """Returns dlio's data set of the files; TFRecord stays as it is, and gets an index."""
    packed = data / "packed"
    if (packed / "manifest.jsonl").exists():
        return packed
    if workload.format == "tfrecord":
        packed.mkdir(exist_ok=True)
        for file in (data / "train").glob("*.tfrecord"):
            (packed / file.name).symlink_to(file.resolve())
        dlio.index(packed, format="tfrecord")
    elif workload.format == "npz":
        with dlio.Writer(packed, schema={"volume": "uint8[?,?,?]"}) as writer:
            for file in sorted((data / "train").glob("*.npz")):
                writer.write({"volume": np.load(file)["x"]}, key=file.stem)
    else:
        dlio.pack(data / "train", packed, format="recordio")
    return packed


def run(words: Sequence[str], batch_size: int, packed: Path | None, ranks: int = 1, decode: int | None = None) -> Found:
    """Returns what a training run found: with dlio's loader over `packed`, or with the benchmark's own.

    Raises:
        FailedError: the run failed.
    """
    out = Path(next(word.partition("=")[2] for word in words if word.startswith("hydra.run.dir=")))
    chosen = {"DLIO_DATASET": str(packed)} if packed else {}
    chosen |= {"DLIO_DECODE": str(decode)} if decode else {}
    lines = _run([*words, "++workload.workflow.train=True", *(_DLIO if packed else ())], chosen, ranks)
    epochs = [json.loads(line) for line in lines if line.startswith("{")]
    metric = json.loads((out / "summary.json").read_text())["metric"]
    later = [epoch for epoch in epochs if epoch["rank"] == 0][1:]
    return Found(
        median(metric["train_au_percentage"][1:]) / 100,
        median(metric["train_throughput_samples_per_second"][1:]),
        median(epoch["cpu"] / epoch["steps"] / batch_size for epoch in later),
    )


def _run(words: Sequence[str], environment: dict[str, str], ranks: int) -> list[str]:
    """Returns the lines that the benchmark wrote."""
    python = [sys.executable, "-W", "ignore", "-m", "benchmarks.mlperf_storage.child"]
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []
    environment |= {"PYTHONPATH": f"{ROOT}:{PEERS}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = f"{Path(__file__).with_name('bin')}:{os.environ['PATH']}"
    command = [*launcher, *python, *words]
    ended = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, cwd=ROOT, check=False)
    if ended.returncode:
        raise FailedError("\n".join(f"{ended.stdout}\n{ended.stderr}".strip().splitlines()[-12:]))
    return ended.stdout.splitlines()
