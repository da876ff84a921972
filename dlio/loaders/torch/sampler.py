"""Samplers through which torch and trainers see the samples of this rank."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import BatchSampler, DistributedSampler

from dlio.loaders.dataset import Batch
from dlio.loaders.loader import Loader
from dlio.loaders.sampling.rank_share import End, RankSteps
from dlio.loaders.torch.dataset import PackedDataset
from dlio.loaders.torch.samples import Items


class RankSampler(DistributedSampler[int]):
    """Yields this rank's sample numbers of the next epoch.

    It is a DistributedSampler, since trainers replace other samplers.
    """

    def __init__(self, dataset: PackedDataset, loader: Loader[Items | Batch]) -> None:
        self.dataset = dataset
        self.shuffle = bool(loader.shuffle)
        self.seed = loader.seed
        self.drop_last = loader.end is End.DROP
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        return (index for step in self.steps() for index in step.indices.tolist())

    def __len__(self) -> int:
        return self.steps().num_samples

    def steps(self) -> RankSteps:
        """Returns the steps of the next epoch.

        Raises:
            UsageError, LauncherError: as `Loader.steps`.
        """
        return self._loader.steps(self.epoch)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The rank of this process."""
        return self._loader.share().rank

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The number of processes."""
        return self._loader.share().world_size

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """The number of samples of each process in the next epoch."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """The number of samples of all processes together, including repeated ones."""
        return self.num_samples * self.num_replicas

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The next epoch."""
        return self._loader.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one."""
        self._loader.set_epoch(epoch)


class RankBatches(BatchSampler):
    """Yields the batches of a RankSampler; the Trainer of transformers sets the epoch here when it resumes."""

    sampler: RankSampler

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one."""
        self.sampler.set_epoch(epoch)
