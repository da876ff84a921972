"""One rank of the DLIO benchmark, which also prints what its epochs cost: `python -m benchmarks.mlperf_storage.child`.

A line of JSON for each epoch of the first rank, since lines of several ranks may come as one: CPU seconds of the
process and its children, and the number of steps.
"""

from __future__ import annotations

import json
from typing import Any

from dlio_benchmark import main as benchmark

from benchmarks.loaders.process_tree import cpu_seconds


def main() -> None:
    """Runs the benchmark."""
    train = benchmark.DLIOBenchmark._train

    def measured(self: Any, epoch: int) -> int:
        before = cpu_seconds()
        steps: int = train(self, epoch)
        if self.my_rank == 0:
            print(json.dumps({"steps": steps, "cpu": cpu_seconds() - before}), flush=True)
        return steps

    benchmark.DLIOBenchmark._train = measured
    benchmark.main()


if __name__ == "__main__":
    main()
