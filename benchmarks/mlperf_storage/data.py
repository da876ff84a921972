"""The files of a workload, by the benchmark's own generator, and dlio's data sets of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import dlio
from benchmarks.mlperf_storage.runs import run_benchmark
from benchmarks.mlperf_storage.workloads import Workload
from dlio.sources import parquet

_ROW_GROUP = 48  # samples: a batch of flux


def generate(workload: Workload, data: Path, num_files: int) -> None:
    """Makes the files of a workload, unless they exist."""
    if len(list(data.glob(f"train/*.{workload.format}"))) >= num_files:
        return
    data.mkdir(parents=True, exist_ok=True)
    if workload.columns:
        _generate_parquet(workload, data / "train", num_files)
        return
    words = workload.overrides(data, data / "generating", num_files, 1)
    run_benchmark([*words, "++workload.workflow.generate_data=True", "++workload.workflow.train=False"], {}, 1)


def _generate_parquet(workload: Workload, train: Path, num_files: int) -> None:
    """Writes columns of random float32 numbers, uncompressed, and the links that the benchmark counts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    train.mkdir(exist_ok=True)
    (train.parent / "valid").mkdir(exist_ok=True)  # the benchmark lists it in any case
    generator = np.random.default_rng(10)
    fields = [pa.field(name, pa.list_(pa.float32(), size)) for name, size in workload.columns.items()]
    for number in range(num_files):
        path = train / f"img_{number}_of_{num_files}.parquet"
        with pq.ParquetWriter(path, pa.schema(fields), compression="none", use_dictionary=False) as writer:
            for start in range(0, workload.samples_per_file, _ROW_GROUP):
                rows = min(_ROW_GROUP, workload.samples_per_file - start)
                columns = [
                    pa.FixedSizeListArray.from_arrays(pa.array(generator.random(rows * size, np.float32)), size)
                    for size in workload.columns.values()
                ]
                writer.write_table(pa.table(columns, schema=pa.schema(fields)), row_group_size=rows)
        path.with_suffix(".npz").symlink_to(path.name)


def pack(workload: Workload, data: Path, *, decode_ready: bool = False) -> Path:
    """Returns dlio's data set of the files; TFRecord files are not changed, and get an index.

    Args:
        workload: whose files they are.
        data: the folder that holds `train`.
        decode_ready: pack JPEGs as records that are decoded in less time.
    """
    packed = data / ("packed-decode-ready" if decode_ready else "packed")
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
    elif workload.format == "parquet":
        dlio.pack(parquet(data / "train"), packed, format="hdf5")
    else:
        words = ["pack", data / "train", packed, "--format", "recordio", "--quiet"]
        words += ["--decode-ready"] if decode_ready else []
        subprocess.run([sys.executable, "-m", "dlio", *map(str, words)], check=True)
    return packed
