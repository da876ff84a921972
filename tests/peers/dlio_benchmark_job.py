"""Runs of the DLIO benchmark in one process: for each line of JSON that is read, prints what was loaded, or the error.

A line holds the arguments of the configuration and the environment variables. `DataLoader` is dlio's, and keeps each
batch.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from dlio_benchmark import main as benchmark
from dlio_benchmark.utils.config import ConfigArguments
from dlio_benchmark.utils.utility import DLIOMPI
from hydra import compose, initialize_config_module
from mpi4py import MPI

from dlio.io.files import digest_bytes
from dlio.loaders import dlio_benchmark

seen: list[list[Any]] = []


class DataLoader(dlio_benchmark.DataLoader):
    """Keeps what it hands out."""

    def next(self) -> Iterator[Any]:
        """Yields the batches of an epoch."""
        seen.append([])
        for batch in super().next():
            seen[-1].append([_shown(image) for image in batch["image"]])
            yield batch


def _shown(image: Any) -> Any:
    return digest_bytes(image) if isinstance(image, bytes | memoryview) else [*image.shape, str(image.dtype)]


def run(words: list[str]) -> Any:
    """Returns the batches of each epoch."""
    seen.clear()
    ConfigArguments.reset()
    name = f"{DataLoader.__module__}.DataLoader"
    with initialize_config_module("dlio_benchmark.configs", version_base=None):
        found = compose("config", [*words, f"++workload.reader.data_loader_classname={name}"])
    one = benchmark.DLIOBenchmark(found["workload"])
    one.initialize()
    one.run()
    one.finalize()
    return list(seen)


def main() -> None:
    """Answers each case on its own line."""
    DLIOMPI.get_instance().initialize()
    for case in json.loads(sys.argv[1]):
        for name in ("DLIO_DATASET", "DLIO_DECODE"):
            os.environ.pop(name, None)
        os.environ.update(case["environment"])
        try:
            answer = {"batches": run(case["words"])}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers = MPI.COMM_WORLD.gather(answer)
        if answers is not None:
            sys.stdout.write(f"{json.dumps(answers)}\n")
            sys.stdout.flush()
    DLIOMPI.get_instance().finalize()


if __name__ == "__main__":
    main()
