"""Accelerate: iteration over dlio's DataLoader after `accelerator.prepare`.

Accelerate does not wrap the loader, since each rank gets its share already. As with Accelerate's own loaders, batches
are on the process's device, the last gradients of an epoch are applied even with gradient accumulation, and
`gather_for_metrics` drops the repeated samples of the last batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


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
