"""Which samples the loaders of all ranks take: those of the plan of each epoch, and each of them once."""

from __future__ import annotations

from collections.abc import Iterable

from dlio.dataset.manifest import Manifest
from dlio.loaders.sampling.order import Shuffle, Window, epoch_order
from dlio.loaders.sampling.rank_share import End, RankSteps, Share, Step, rank_steps
from tools.simulate.chance import Chance

_SHUFFLES: tuple[Shuffle, ...] = (False, True, Window(2))


class Orders:
    """The plan of a job's epochs, as dlio computes it for each rank, and what the ranks have taken.

    Args:
        seed: of the schedule.
        manifest: of the data set.
        num_ranks: of the job.
    """

    def __init__(self, seed: int, manifest: Manifest, num_ranks: int) -> None:
        chance = Chance(seed, "samples")
        self._seed, self._manifest, self._num_ranks = seed, manifest, num_ranks
        self._batch_size, self._shuffle = chance.between(1, 3), chance.pick(_SHUFFLES)
        self._takers: dict[tuple[int, int], int] = {}  # the rank, by epoch and sample
        self._batches: dict[tuple[int, int], set[int]] = {}  # of all ranks together, by epoch and step

    def steps(self, epoch: int, rank: int, num_ranks: int) -> RankSteps:
        """Returns the batches of a rank."""
        return self._steps(epoch, Share(rank, num_ranks, self._batch_size))

    def _steps(self, epoch: int, share: Share) -> RankSteps:
        order = epoch_order(self._manifest, seed=self._seed, epoch=epoch, shuffle=self._shuffle)
        return rank_steps(order, share, End.MASK)

    def take(self, rank: int, epoch: int, number: int, step: Step) -> str:
        """Notes that a rank takes its batch of this number; returns what is wrong with it, "" if nothing is."""
        if (epoch, number) not in self._batches:
            whole = self._steps(epoch, Share(0, 1, self._batch_size * self._num_ranks))
            self._batches.update({(epoch, each): _samples(batch) for each, batch in enumerate(whole)})
        samples = _samples(step)
        for sample in sorted(samples):
            taker = self._takers.setdefault((epoch, sample), rank)  # a process that is started again takes its own
            if taker != rank:
                return f"ranks {taker} and {rank} took sample {sample} of epoch {epoch}"
        if strange := samples - self._batches.get((epoch, number), set()):
            return f"rank {rank} took {sorted(strange)} in step {number} of epoch {epoch}"
        return ""

    def lacking(self, epochs: Iterable[int]) -> str:
        """Returns which sample no rank has taken; "" if there is none."""
        for epoch in epochs:
            for sample in range(self._manifest.num_samples):
                if (epoch, sample) not in self._takers:
                    return f"no rank took sample {sample} of epoch {epoch}"
        return ""


def _samples(step: Step) -> set[int]:
    """Returns the samples of a batch that do not repeat earlier ones."""
    return set(step.indices[step.valid].tolist())
