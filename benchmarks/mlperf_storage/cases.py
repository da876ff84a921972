"""What is measured: a workload with a number of ranks and accelerators, and each loader in turns."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.mlperf_storage.workloads import WORKLOADS, Workload


@dataclass(frozen=True, slots=True)
class Case:
    """One group of rows.

    Attributes:
        name: of the workload.
        ranks: processes.
        accelerators: that each rank emulates: a step takes this part of its time.
        threads: of a rank's reader; None for the workload's.
        decode: pixels of a side; None for records as they are stored.
        is_cold: whether the page cache is dropped before each run.
    """

    name: str
    ranks: int = 1
    accelerators: int = 1
    threads: int | None = None
    decode: int | None = None
    is_cold: bool = False

    @property
    def workload(self) -> Workload:
        """The workload itself."""
        return WORKLOADS[self.name]

    @property
    def emulated(self) -> str:
        """The accelerators of all ranks."""
        threads = f", {self.threads} threads" if self.threads else ""
        return f"{self.ranks * self.accelerators} {self.workload.accelerator}{threads}"

    def words(self, own: list[str]) -> list[str]:
        """Returns the configuration, given that of the workload."""
        return [*own, f"++workload.reader.read_threads={self.threads}"] if self.threads is not None else own


#: The figures of docs/performance.md and benchmarks/NOTES.md, the most wanted first.
FIGURES = [
    Case("retinanet"),
    Case("resnet50"),
    *(Case("retinanet", accelerators=each, threads=2) for each in (32, 24, 16)),
    Case("resnet50", accelerators=12),
    Case("retinanet", decode=800, threads=2),
    Case("cosmoflow"),
    Case("unet3d"),
    Case("flux", accelerators=32),
    Case("flux", accelerators=16),
    *(Case(name, is_cold=True) for name in ("retinanet", "resnet50")),
    *(Case("resnet50", ranks=2, is_cold=each) for each in (False, True)),
    Case("cosmoflow", is_cold=True),
    Case("unet3d", is_cold=True),
    Case("unet3d", ranks=2),
    Case("retinanet", ranks=2),
    Case("cosmoflow", ranks=2),
    Case("flux", is_cold=True),
    Case("flux", ranks=2),
    Case("retinanet", ranks=4),
    *(Case("retinanet", ranks=each, is_cold=True) for each in (2, 4)),
]
