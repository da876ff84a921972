"""Batches on a device, copied there while earlier ones are in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from dlio.errors import UsageError

_AHEAD = 2  # batches on the device beside the one in use


def checked_device(device: str | torch.device) -> torch.device:
    """Returns a device on which a tensor can be made, with its number; raises UsageError for another."""
    try:
        return torch.empty(0, device=device).device
    except Exception as error:  # torch raises many kinds
        problem = str(error).partition("\n")[0]
        raise UsageError(f"device={str(device)!r} cannot be used: {problem}") from error


def on_device(batches: Generator[Any, None, None], device: torch.device) -> Generator[Any, None, None]:
    """Yields batches on a device; to a GPU the next ones are copied meanwhile, from pinned memory, on a stream beside.

    Memory of a batch is not used again before the steps that the consumer has queued on its stream have read it.
    """
    with closing(batches):
        if device.type != "cuda":
            yield from (_moved(batch, device, waits=True) for batch in batches)
            return
        beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        ahead = deque[tuple[Any, torch.cuda.Event]]()
        for batch in batches:
            with torch.cuda.stream(beside):
                copy = _moved(pinned(batch), device, waits=False)  # type: ignore[no-untyped-call]
                ahead.append((copy, beside.record_event()))
            del batch, copy  # whose memory may be the next one's
            if len(ahead) > _AHEAD:
                yield _arrived(*ahead.popleft(), device)
        while ahead:
            yield _arrived(*ahead.popleft(), device)


def _arrived(batch: Any, copied: torch.cuda.Event, device: torch.device) -> Any:
    """Returns a batch that the consumer's stream uses once it is copied."""
    used_by = torch.cuda.current_stream(device)
    used_by.wait_event(copied)
    for tensor in _tensors(batch):
        tensor.record_stream(used_by)
    return batch


def _moved(batch: Any, device: torch.device, *, waits: bool) -> Any:
    """Returns a batch with its tensors on a device; all else is unchanged."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=not waits)
    if isinstance(batch, Mapping):
        return {name: _moved(value, device, waits=waits) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [_moved(value, device, waits=waits) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def _tensors(batch: Any) -> Generator[torch.Tensor, None, None]:
    """Yields the tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for value in batch:
            yield from _tensors(value)
