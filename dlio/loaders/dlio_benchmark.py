"""The DLIO benchmark of Argonne, which MLPerf Storage runs: `DataLoader`, its loader from outside.

    DLIO_DATASET=/fast/packed dlio_benchmark workload=NAME \\
      +workload.reader.data_loader_classname=dlio.loaders.dlio_benchmark.DataLoader \\
      +workload.reader.data_loader_sampler=iterative

The benchmark itself counts the files in `data_folder/train`, so these stay where they are. Without DLIO_DATASET,
`data_folder/train` is read; `dlio index` makes a data set of TFRecord files there. Evaluation reads `valid` next to it.

Tests run dlio-benchmark 2.0.0 from PyPI, with pydftracer 1.0.2. On 28 November 2026, Argonne's repository (e1919d7)
and MLCommons' (DLIO_local_changes, f6796ed) loaded two epochs of 26 images each by this class, with pydftracer 2.0.6.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from dlio.errors import DlioError, MissingPackageError, UsageError
from dlio.images import Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import Batch, PackedSamples
from dlio.loaders.loader import Loader

try:
    from dlio_benchmark.common.enumerations import DataLoaderSampler, DataLoaderType, DatasetType, Shuffle
    from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
except ModuleNotFoundError as error:
    problem = "the benchmark loads dlio.loaders.dlio_benchmark: install the package dlio-benchmark, in version 2.0.0"
    raise MissingPackageError(problem) from error


class DataLoader(BaseDataLoader):  # type: ignore[misc]
    """Batches of dlio for the benchmark, as dicts of fields: images as `bytes`, or decoded.

    Rank, number of ranks, batch size, seed, shuffle, threads and prefetched batches are the benchmark's. The order is
    that of all of dlio's loaders. With DLIO_DECODE, images are decoded and resized to a square of that many pixels.

    For one thread.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        """As the benchmark calls it; `read` opens the data set."""
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        self._loader: Loader[Batch] | None = None
        self._batches: Generator[Batch, None, None] | None = None

    def read(self) -> None:
        """Opens the data set and checks that it fits the configuration.

        Raises:
            UsageError: the configuration asks for what dlio does not do, or for more samples than there are; names the
                key or variable to change.
            DlioError: as `PackedSamples`, where a data set is damaged.
        """
        args = self._args
        _check_reader(args)
        samples = self._samples()
        shuffles = {str(given) for given in (args.sample_shuffle, args.file_shuffle)}  # YAML makes False of off
        self._loader = Loader(
            ArrayBatches(samples),
            self.batch_size,
            shuffle=bool(shuffles - {str(Shuffle.OFF), "False"}),
            seed=args.seed,
            rank_and_size=lambda: (args.my_rank, args.comm_size),
            num_workers=args.read_threads,
            end="drop",
            prefetch=args.prefetch_size or 2,
        )

    def _samples(self) -> PackedSamples:
        """Returns as many samples as the configuration promises."""
        is_training = self.dataset_type is DatasetType.TRAIN
        part, files = ("train", "num_files_train") if is_training else ("valid", "num_files_eval")
        given = os.environ.get("DLIO_DATASET") if is_training else None
        folder = given or f"{self._args.data_folder}/{part}"
        try:
            samples = PackedSamples(folder, transform=_transform())
        except (DlioError, OSError) as error:
            how = "set DLIO_DATASET to one, or " if is_training else "set workload.workflow.evaluation=False, or "
            where = "DLIO_DATASET" if given else f"workload.dataset.data_folder, {part}"
            advice = f"{how}make one there with dlio pack or dlio index"
            raise UsageError(f"{folder} ({where}) is no data set of dlio: {error}; {advice}") from error
        if len(samples) < self.num_samples:
            raise UsageError(
                f"{folder} has {len(samples)} samples, and workload.dataset.{files} and num_samples_per_file promise "
                f"{self.num_samples}: pack them all, or lower {files}"
            )
        return samples.over(samples.opened.chosen(np.arange(self.num_samples)))

    def next(self) -> Iterator[Batch]:
        """Returns the batches of this rank, of the next epoch.

        Raises:
            UsageError: there is no whole batch for every rank.
            CorruptRecordError, StorageError: raised at the batch with the record.
        """
        assert self._loader is not None, "the benchmark calls read first"
        self.finalize()
        self._loader.set_epoch(self.epoch_number if self._args.seed_change_epoch else 0)
        self.epoch_number += 1
        self._batches = iter(self._loader)
        return self._batches

    def finalize(self) -> None:
        """Ends an epoch, which the benchmark leaves after its last step; files stay open for the next one."""
        if self._batches is not None:
            self._batches.close()


def _check_reader(args: Any) -> None:
    """Raises UsageError for a reader that dlio is not."""
    if args.data_loader_sampler is not DataLoaderSampler.ITERATIVE:
        raise UsageError(
            f"workload.reader.data_loader_sampler={args.data_loader_sampler}: dlio makes its own order, for which "
            "the benchmark need not list every sample: set it to iterative"
        )
    given = args.preprocess_time
    of_distribution = given if isinstance(given, Mapping) else {"mean": given}  # newer than the wheel: a mapping
    if any(each for key, each in of_distribution.items() if key != "type"):
        raise UsageError(
            f"workload.reader.preprocess_time={given}: dlio emulates no preprocessing: set it to 0, "
            "and DLIO_DECODE=PIXELS to decode and resize images"
        )


def _transform() -> Resize | None:
    """Returns the transform that DLIO_DECODE asks for."""
    size = os.environ.get("DLIO_DECODE", "")
    if size and not (size.isascii() and size.isdigit() and int(size)):
        raise UsageError(f"DLIO_DECODE={size}: expected the number of pixels of a side, such as 800")
    return Resize(int(size)) if size else None
