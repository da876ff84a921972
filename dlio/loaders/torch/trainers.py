"""What trainers need of dlio's DataLoader.

Accelerate does not wrap the loader, since each rank gets its share already. As with Accelerate's own loaders, batches
are on the process's device, the last gradients of an epoch are applied even with gradient accumulation, and
`gather_for_metrics` drops the repeated samples of the last batch. Lightning saves checkpoints within a step, and starts
processes whose rank is known in Python only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed

from dlio.errors import LauncherError
from dlio.loaders.sampling.rank import rank_from_env


@dataclass(eq=False)
class Iteration:
    """One iteration, with the attributes that Accelerate's GradientState reads; not slotted, for weak references.

    Attributes:
        remainder: rows of the last global batch before the repeated samples; 0 if it repeats none.
        end_of_dataloader: whether the last batch was handed out.
    """

    remainder: int
    end_of_dataloader: bool = False


def for_accelerate(
    batches: Iterable[Any], is_done: Callable[[], bool], remainder: int, *, non_blocking: bool
) -> Iterator[Any]:
    """Yields batches on the process's device, and registers the iteration with Accelerate.

    Args:
        batches: of this rank.
        is_done: returns whether the batch taken last was the last one.
        remainder: see `Iteration`.
        non_blocking: copy to the device without waiting; needs pinned memory.
    """
    from accelerate.state import GradientState, PartialState
    from accelerate.utils import send_to_device

    gradients, device, this = GradientState(), PartialState().device, Iteration(remainder)
    gradients._add_dataloader(this)
    try:
        for batch in batches:
            this.end_of_dataloader = is_done()
            yield send_to_device(batch, device, non_blocking=non_blocking)
    finally:
        gradients._remove_dataloader(this)


_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def is_saved_within_step() -> bool:
    """Returns whether Lightning saves a checkpoint in the middle of a step, whose batch it will take again.

    It counts a batch behind its step, and asks a loader for its state without saying how far it is. A state that
    counts one batch more would leave the epoch one batch short, and Lightning validates at the last batch only. The
    fit loop is the caller's caller, and holds the count.
    """
    frame = sys._getframe(1)
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "on_save_checkpoint" and frame.f_globals.get("__name__") in _FIT_LOOPS:
            progress = frame.f_locals["self"].epoch_loop.batch_progress.current
            return bool(progress.ready > progress.processed)
    return False


def rank_of_process() -> tuple[int, int]:
    """Returns rank and world size of this process from the launcher's variables.

    An initialised torch.distributed overrides them if it has another number of ranks or the launcher set none:
    Lightning starts processes whose rank is known in Python only.

    Raises:
        LauncherError: as Topology.from_env, without torch.distributed.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return rank_from_env()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    try:
        launched = rank_from_env()
    except LauncherError:
        return rank, world_size
    return launched if launched[1] == world_size else (rank, world_size)
