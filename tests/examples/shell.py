"""Runs the commands that an example begins with, as a user who copied it would, in a folder that holds its data."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "tools" / "examples"
_LIMIT_SECONDS = 550
_LAUNCHERS = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "HOROVOD_", "TF_CONFIG", "DLIO_")


def commands(script: str) -> list[str]:
    """Returns the commands at the beginning of a script's docstring; the last one trains."""
    text = ast.get_docstring(ast.parse((EXAMPLES / script).read_text())) or ""
    block = text.split("\n\n")[1].replace("\\\n", " ")
    return [line.strip() for line in block.splitlines()]


def prepare(script: str, folder: Path) -> str:
    """Copies a script into `folder`, packs and stages what lies there, and returns the command that trains."""
    shutil.copy(EXAMPLES / script, folder)
    *preparing, training = commands(script)
    run(["\n".join(preparing)], folder)
    return training.replace(script, f"{Path(__file__).with_name('observe.py')} {script}")


def run(jobs: Sequence[str], folder: Path, environments: Sequence[dict[str, str]] = ({},)) -> list[str]:
    """Runs shell commands at the same time, one in each of the environments, and returns what each has printed.

    If one fails, all are ended, and the test fails with its output.
    """
    processes = [_start(job, folder, added) for job, added in zip(jobs, environments, strict=True)]
    try:
        outputs = [process.communicate(timeout=_LIMIT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    failed = [f"{job}\n{out}" for job, out, process in zip(jobs, outputs, processes, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)
    return outputs


def _start(job: str, folder: Path, added: dict[str, str]) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    places = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "LOCAL_SCRATCH": str(folder / "node")}
    (folder / "node").mkdir(exist_ok=True)
    return subprocess.Popen(
        ["bash", "-euc", job],
        cwd=folder,
        env=own | quiet | places | added,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def observed(folder: Path) -> list[list[dict[str, Any]]]:
    """Returns what each rank was given, batch by batch: `data`, `epoch`, `images`."""
    return [list(map(json.loads, path.read_text().splitlines())) for path in sorted(folder.glob("*.jsonl"))]


def steps(ranks: list[list[dict[str, Any]]], data: str) -> list[list[int]]:
    """Returns the images of each global batch of `data`, having checked that every rank took as many steps."""
    mine = [[batch["images"] for batch in rank if batch["data"] == data] for rank in ranks]
    assert len({len(batches) for batches in mine}) == 1, [len(batches) for batches in mine]
    return [images(batches) for batches in zip(*mine, strict=True)]


def images(batches: Iterable[list[int]]) -> list[int]:
    """Returns the images of some batches, one after the other."""
    return list(chain.from_iterable(batches))


def losses(output: str) -> list[float]:
    """Returns the loss of each epoch of training, having checked that it is finite and falls."""
    found = [float(text) for text in re.findall(r"^epoch \d+: (?!tested).*?loss ([-\w.]+)", output, re.MULTILINE)]
    assert found and all(map(math.isfinite, found)) and found[-1] < found[0], output
    return found
