"""The workloads, with the published parameters of MLPerf Storage: v2.0's for H100, v3.0's RetinaNet for B200.

Sources: `configs/dlio/workload/*_h100.yaml` of mlcommons/storage (v2.0); `retinanet_b200.yaml` and `flux_b200.yaml` of
v3.0. Version 2.0.0 of the benchmark neither generates nor reads Parquet: flux's files are made here, it counts them by
links called `.npz`, and its own loader does not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Workload:
    """What one accelerator reads, and how fast.

    Attributes:
        accelerator: the one emulated.
        framework: `pytorch` or `tensorflow`, which is also the benchmark's own loader.
        format: of the files.
        num_files: of the whole data set.
        cut: the same of a short run.
        samples_per_file: samples of a file.
        dataset: other keys of `workload.dataset`; `record_length` is in bytes.
        reader: keys of `workload.reader`.
        seconds: of a training step.
        pass_mark: the lowest accelerator utilization that passes.
        columns: of files in Parquet, the float32 numbers of a sample in each.
    """

    accelerator: str
    framework: str
    format: str
    num_files: int
    cut: int
    samples_per_file: int
    dataset: Mapping[str, float]
    reader: Mapping[str, object]
    seconds: float
    pass_mark: float
    columns: Mapping[str, int] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        """Samples of a step of one accelerator."""
        return int(str(self.reader["batch_size"]))

    @property
    def has_own_loader(self) -> bool:
        """Whether the benchmark's own loader reads the format."""
        return self.format != "parquet"

    def overrides(self, data: Path, out: Path, num_files: int, epochs: int, accelerators: int = 1) -> list[str]:
        """Returns the words that configure the benchmark.

        Args:
            data: the folder that holds `train`.
            out: the folder for results.
            num_files: files of the data set.
            epochs: number of them.
            accelerators: that one process emulates: a step takes this part of its time.
        """
        keys: dict[str, object] = {
            "framework": self.framework,
            "workflow.evaluation": False,
            "workflow.checkpoint": False,
            "dataset.format": self.format if self.has_own_loader else "npz",
            "dataset.num_files_train": num_files,
            "dataset.num_files_eval": 0,
            "dataset.num_subfolders_train": 0,
            "dataset.num_subfolders_eval": 0,
            "dataset.num_samples_per_file": self.samples_per_file,
            "dataset.data_folder": data,
            **{f"dataset.{name}": value for name, value in self.dataset.items()},
            "reader.data_loader": self.framework,
            **{f"reader.{name}": value for name, value in self.reader.items()},
            "train.epochs": epochs,
            "train.computation_time": self.seconds / accelerators,
            "metric.au": self.pass_mark,
            "output.folder": out,
        }
        return [f"hydra.run.dir={out}", *(f"++workload.{name}={value}" for name, value in keys.items())]


WORKLOADS = {
    "retinanet": Workload(
        "B200", "pytorch", "jpeg", 1_170_301, 960, 1,
        {"record_length": 322_957}, {"batch_size": 24, "read_threads": 1, "sample_shuffle": "seed"}, 0.04755, 0.85,
    ),
    "resnet50": Workload(
        "H100", "tensorflow", "tfrecord", 1_024, 8, 1_251,
        {"record_length": 114_660.07, "record_length_resize": 150_528},
        {"batch_size": 400, "read_threads": 8, "computation_threads": 8}, 0.224, 0.90,
    ),
    "unet3d": Workload(
        "H100", "pytorch", "npz", 168, 28, 1,
        {"record_length": 146_600_628, "record_length_stdev": 68_341_808, "record_length_resize": 2_097_152},
        {"batch_size": 7, "read_threads": 4, "file_shuffle": "seed", "sample_shuffle": "seed"}, 0.323, 0.90,
    ),
    "cosmoflow": Workload(
        "H100", "tensorflow", "tfrecord", 524_288, 512, 1,
        {"record_length": 2_828_486, "record_length_stdev": 71_311},
        {"batch_size": 1, "read_threads": 4, "file_shuffle": "seed", "sample_shuffle": "seed", "shuffle_size": 2},
        0.0035, 0.70,
    ),
    "flux": Workload(
        "B200", "pytorch", "parquet", 4_296, 2, 288,
        {"record_length": 2_164_832}, {"batch_size": 48, "read_threads": 8, "file_shuffle": "seed"}, 1.35, 0.90,
        {"t5_encodings": 524_328, "clip_encodings": 409, "mean": 8_232, "logvar": 8_232, "timestamp": 7},
    ),
}  # fmt: skip
