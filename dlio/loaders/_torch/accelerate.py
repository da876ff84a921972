"""Accelerate: what batches of dlio's DataLoader need once it has gone through `accelerator.prepare`.

Accelerate leaves the loader as it is, since each rank gets its part already. As with Accelerate's own loaders, batches
then come on the process's device, the last gradients of an epoch are applied however many steps are accumulated, and
`gather_for_metrics` leaves the repeated samples of the last batch out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Pass:
    """One iteration, as Accelerate's GradientState asks after it; not slotted, since it is referred to weakly.

    Attributes:
        remainder: rows of the last batch, gathered from all ranks, before those that repeat samples; 0 if it has none.
        end_of_dataloader: whether the last batch was handed out.
    """

    remainder: int
    end_of_dataloader: bool = False


def for_accelerate(
    batches: Iterable[Any], is_done: Callable[[], bool], remainder: int, *, non_blocking: bool
) -> Iterator[Any]:
    """Yields batches on the process's device, and keeps Accelerate informed.

    Args:
        batches: of this rank.
        is_done: tells, once a batch was taken, whether it was the last.
        remainder: see `Pass`.
        non_blocking: copy to the device without waiting, which needs pinned memory.
    """
    from accelerate.state import GradientState, PartialState
    from accelerate.utils import send_to_device

    gradients, device, this = GradientState(), PartialState().device, Pass(remainder)
    gradients._add_dataloader(this)
    try:
        for batch in batches:
            this.end_of_dataloader = is_done()
            yield send_to_device(batch, device, non_blocking=non_blocking)
    finally:
        gradients._remove_dataloader(this)
