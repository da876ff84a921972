"""Batches on a device, copied there while earlier ones are in use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from contextlib import closing
from copy import copy
from functools import cache, partial
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from dlio.errors import UsageError
from dlio.loaders.prefetch.work import look_ahead

_AHEAD = 2  # batches on the device in addition to the one in use


def checked_device(device: str | int | torch.device) -> torch.device:
    """Returns a device that can hold a tensor, with its number; raises UsageError for another."""
    try:
        found = torch.ones(1, device=device)
        found.item()  # which `meta` has not
    except Exception as error:  # torch raises many kinds
        problem = str(error).partition("\n")[0]
        raise UsageError(f"device={device!r} cannot be used: {problem}") from error
    return found.device


def on_device(batches: Generator[Any, None, None], device: torch.device) -> Generator[Any, None, None]:
    """Yields batches on a device; the next ones are copied to a GPU from pinned memory, on a second stream.

    Memory of a batch is not used again before the steps that the consumer has queued on its stream have read it.
    """
    with closing(batches):
        if device.type != "cuda":
            yield from (_with_tensors(batch, lambda tensor: tensor.to(device)) for batch in batches)
            return
        for batch, copied in look_ahead(_copies(batches, device), _AHEAD):
            used_by = torch.cuda.current_stream(device)
            used_by.wait_event(copied)
            _with_tensors(batch, partial(_used_by, used_by))
            yield batch
            del batch  # its memory may be a later one's


def _copies(batches: Iterator[Any], device: torch.device) -> Generator[tuple[Any, torch.cuda.Event], None, None]:
    """Yields batches that are being copied to a GPU, each with the event of its arrival."""
    stream = _copy_stream(device)
    for batch in batches:
        with torch.cuda.stream(stream):
            held = pinned(batch)  # type: ignore[no-untyped-call]
            there = _with_tensors(held, lambda tensor: tensor.to(device, non_blocking=True)), stream.record_event()
        del batch, held  # whose memory may be the next one's
        yield there
        del there


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream of a device's copies, one for all loaders: memory that is freed belongs to its stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _used_by(stream: torch.cuda.Stream, tensor: torch.Tensor) -> torch.Tensor:
    tensor.record_stream(stream)
    return tensor


def _with_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns a batch with its tensors changed; all else, and the types of what holds them, stay."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        by_name = {name: _with_tensors(value, change) for name, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return by_name
        held = copy(batch)
        held.update(by_name)
        return held
    if isinstance(batch, tuple | list):
        changed = [_with_tensors(value, change) for value in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else type(batch)(changed)
    return batch
