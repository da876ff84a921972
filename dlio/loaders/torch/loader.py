"""DataLoader: torch's, mostly with threads as workers, an order for any number of ranks, and a resumable state."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Unpack

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, Sampler, Subset
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from dlio.errors import UsageError
from dlio.images import Transforms
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.batches import paired
from dlio.loaders.dataset import Batch
from dlio.loaders.loader import Loader
from dlio.loaders.mixture import Data
from dlio.loaders.options import MostKeywords, forwarded, options_of, takes_options
from dlio.loaders.sampling.order import Shuffle
from dlio.loaders.sampling.rank import given_rank, num_cores_of_rank
from dlio.loaders.sampling.rank_share import End, Step
from dlio.loaders.torch.dataset import PackedDataset, tensors
from dlio.loaders.torch.device import checked_device, on_device
from dlio.loaders.torch.processes import Collated, ProcessBatches, is_for_processes
from dlio.loaders.torch.sampler import RankBatches, RankSampler
from dlio.loaders.torch.samples import ItemBatches, Items, check_makes_batches, samples_of
from dlio.loaders.torch.trainers import for_accelerate, is_saved_within_step, rank_of_process


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Yields batches as torch's DataLoader does: (images, labels) as tensors, or a dict of fields.

    Each iteration is the next epoch. Without `sampler` and `batch_sampler` the order is dlio's and each rank gets its
    share of it. Rank and world size are those given, else those of the launcher; an initialised torch.distributed with
    another number of ranks overrides the launcher. An exception in a thread is raised at its batch. The threads end
    when the iteration ends or its iterator is deleted.

    For one thread. Safe across fork between iterations.
    """

    use_stateful_dataloader = True  # Accelerate's save_state and load_state include the loader's state

    @takes_options()
    def __init__(
        self,
        dataset: PackedDataset | Subset[Any] | ConcatDataset[Any] | Data,
        batch_size: int | None = 1,
        shuffle: Shuffle | None = False,
        sampler: Sampler[int] | Iterable[int] | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        transform: Transforms | Callable[[Any], Any] | None = None,
        device: str | int | torch.device | None = None,
        **keywords: Unpack[MostKeywords],
    ) -> None:
        """Takes torch's arguments, also by position, and dlio's own by keyword.

        Args:
            dataset: the folder or URL of a data set, a manifest or a `Mixture`; or a PackedDataset of it; or some of
                its samples, by torch's Subset or random_split, whose order is that of the shards; or those of several
                PackedDatasets with the same fields and transform, by torch's ConcatDataset.
            batch_size: samples of one rank's batch.
            shuffle: False, True or `Window(w)`.
            sampler, batch_sampler: another order, used unchanged on every rank.
            num_workers: threads, by default one for each core of this rank; or processes if the transform is a function
                in Python, by default none. 0 decodes in the consumer's thread.
            collate_fn: gets a list of samples; without one the threads write into the batch directly.
            pin_memory: copy tensors to pinned memory, if there is an accelerator.
            drop_last: end an epoch with whole batches; else the last may be short, and a few samples are repeated if
                ranks would differ.
            timeout: seconds to wait for a batch; None or 0 wait forever.
            worker_init_fn, multiprocessing_context, persistent_workers: as torch's for processes; unused for threads.
            in_order, pin_memory_device: checked as by torch, else unused.
            generator: its initial seed is the seed, if `seed` is 0.
            prefetch_factor: an alias of `prefetch`: batches made ahead by all threads together.
            transform: applied to each image: one of `dlio.images`, or a list of these, or any function of a PIL image.
            device: the device of a batch's tensors. Two batches are copied to a GPU ahead of the one in use,
                from pinned memory, on another stream than the consumer's. The state counts the batch in use.
            **keywords: see `dlio.loaders.options.Options`.

        Raises:
            ValueError: as torch's DataLoader.
            UsageError: the numbers do not divide evenly, `dataset` is not a PackedDataset, or no tensor can be made on
                `device`.
        """
        given: dict[str, Any] = {} if prefetch_factor is None else {"prefetch_factor": prefetch_factor}
        given |= {"shuffle": shuffle or False, "timeout": timeout, "drop_last": drop_last}
        options = options_of({**given, **keywords})
        own_order = sampler is None and batch_sampler is None
        chosen = samples_of(dataset, transform, options, ascending=own_order)
        if collate_fn is torch.utils.data.default_collate:
            collate_fn = None  # a trainer that recreates the loader passes this attribute back
        check_makes_batches(
            chosen, collates=collate_fn is not None, sized=batch_size is not None or batch_sampler is not None
        )
        if (
            options.end == End.MASK
            and not own_order
            and not isinstance(getattr(batch_sampler, "sampler", None), RankSampler)
        ):
            raise UsageError("end='mask' needs dlio's order, which marks repeated samples: leave out your own sampler")
        self.shuffle, self.lanes, self.rank, self.world_size = shuffle, options.lanes, options.rank, options.world_size
        self.device = None if device is None else checked_device(device)
        self.seed = options.seed or (0 if generator is None else generator.initial_seed())
        self.end, self.prefetch = End(options.end), options.prefetch
        self._accelerated = False
        by_item = not chosen.makes_arrays or collate_fn is not None
        source: Any = ItemBatches(chosen) if by_item else ArrayBatches(chosen.packed, mask=self.end is End.MASK)
        by_processes = by_item and is_for_processes(chosen)
        if num_workers is None:
            num_workers = 0 if by_processes else num_cores_of_rank()
        if by_processes:
            of_workers = {"num_workers": max(0, num_workers), "worker_init_fn": worker_init_fn}
            of_workers |= {"multiprocessing_context": multiprocessing_context, "persistent_workers": persistent_workers}
            source = ProcessBatches(source, collate_fn or torch.utils.data.default_collate, of_workers)
        self._loader: Loader[Any] = Loader(
            source,
            batch_size or 1,
            shuffle=options.shuffle,
            seed=self.seed,
            lanes=options.lanes,
            end=self.end,
            rank_and_size=self._rank_and_size,
            num_workers=max(0, num_workers),
            prefetch=options.prefetch,
            timeout=timeout,
        )
        super().__init__(
            chosen,
            batch_size,
            None if own_order else bool(shuffle),
            RankSampler(chosen, self._loader) if own_order else sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout or 0,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if isinstance(self.sampler, RankSampler) and batch_size is not None:
            vars(self)["batch_sampler"] = RankBatches(self.sampler, batch_size, drop_last)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether Accelerate must not shard the loader again; `prepare` sets it."""
        return self._own_order

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._accelerated = prepared

    def check_worker_number_rationality(self) -> None:
        """Does nothing: torch warns of more worker processes than cores, but here workers are mostly threads."""

    def _rank_and_size(self) -> tuple[int, int]:
        return given_rank(self.rank, self.world_size) or rank_of_process()

    @property
    def _own_order(self) -> bool:
        return isinstance(self.sampler, RankSampler)

    def __repr__(self) -> str:
        order = f"shuffle {self.shuffle}, seed {self.seed}" if self._own_order else "an order of your own"
        return f"<DataLoader of batches of {self.batch_size}, {order}, epoch {self.epoch}: {self.dataset!r}>"

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch; the same on every rank if the order is dlio's."""
        return len(self._loader) if self._own_order else super().__len__()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Starts the next epoch, or resumes at the position that `load_state_dict` has set.

        Raises:
            UsageError: the numbers of ranks and samples do not divide evenly, or there is no whole batch.
            CorruptRecordError, StorageError: raised at the batch with the record.
            TimedOutError: a batch took longer than `timeout`, a TimeoutError too.
        """
        if self._own_order:
            batches = self._loader.through(self._convert, self._moved)
            return self._for_accelerate(batches) if self._accelerated else batches
        epoch = self._loader.next_epoch
        self._loader.set_epoch(epoch + 1)
        return self._moved(self._loader.run(self._given_steps(), epoch, self._convert))

    def _moved(self, batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """Yields batches on the device, if there is one."""
        return batches if self.device is None else on_device(batches, self.device)

    def _given_steps(self) -> Iterator[Step]:
        """Yields the batches of a given sampler; a trainer that recreates a loader passes its RankSampler."""
        given = getattr(self.batch_sampler, "sampler", None)
        planned: Iterable[Step | None] = given.steps() if isinstance(given, RankSampler) else repeat(None)
        for indices, step in zip(self._index_sampler, planned, strict=False):
            yield step or Step(np.atleast_1d(indices), np.ones(np.size(indices), np.bool_))

    def _for_accelerate(self, batches: Iterator[Any]) -> Iterator[Any]:
        share, start = self._loader.share(), self._loader.reached.consumed
        repeats = self.end is not End.DROP and share.num_lanes == 1  # with several lanes, not at the end
        rest = self._loader.source.samples.numbering.epoch_samples - start
        remainder = rest % (share.world_size * share.batch_size) if repeats else 0
        return for_accelerate(
            batches, lambda: not self._loader.reached.consumed, remainder, non_blocking=self.pin_memory
        )

    def _convert(self, made: Items | Collated | Batch) -> Any:
        if isinstance(made, (tuple, Collated)):
            if isinstance(made, tuple):
                items, valid = made
                with self._loader.source.samples.clock.stage("collate"):
                    batch = self.collate_fn(items)
            else:
                batch, valid = made.batch, made.valid
            batch = (batch, torch.from_numpy(valid)) if self.end is End.MASK else batch
        else:
            batch = paired(tensors(made), self._loader.source.samples.schema)
        if self.pin_memory and torch.cuda.is_available():
            batch = pinned(batch)  # type: ignore[no-untyped-call]
        return batch

    @property
    def epoch(self) -> int:
        """The epoch of the running iteration, else the next: `for epoch in range(loader.epoch, 90)`."""
        return self._loader.epoch

    set_epoch = forwarded(Loader.set_epoch)

    def state_dict(self) -> dict[str, int | str]:
        """Returns the state of the run: five scalars, the same on every rank, for any number of ranks.

        It counts the batches that were handed out. Within a step, Lightning's checkpoint leaves its batch out.

        Raises:
            UsageError: the order is not dlio's.
        """
        self._require_own_order()
        return self._loader.state_before() if is_saved_within_step() else self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Makes the next iteration resume where `state_dict` was taken, with any number of ranks and any batch size.

        Raises:
            UsageError: the state is of another data set, order or seed, or the order is not dlio's.
        """
        self._require_own_order()
        self._loader.load_state_dict(state)

    def _require_own_order(self) -> None:
        if not self._own_order:
            raise UsageError("a loader with your own sampler has no state: leave sampler and batch_sampler out")

    stats = forwarded(Loader.stats)
    verdict = forwarded(Loader.verdict)

    def close(self) -> None:
        """Ends running iterations and closes all files; the loader can be used again."""
        self._loader.close()
        if isinstance(self._loader.source, ProcessBatches):
            self._loader.source.end()
