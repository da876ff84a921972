"""A loader's saved state: its five scalars, alone in a file or somewhere in a checkpoint."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dlio.errors import UsageError, needs_package
from dlio.io.files import storage_errors

_NAMES = {"version", "order", "seed", "epoch", "samples"}
_MOST_VALUES = 1 << 20  # searched: a checkpoint of a large model has some 10,000
_MOST_BYTES = 1 << 20  # of JSON
_DAMAGED = (RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError)  # of torch, by what it finds


def saved_state(path: str | Path) -> Mapping[str, object]:
    """Returns the only state of a loader in a file: a checkpoint of torch's, or JSON.

    The file is read without running what it holds, and without reading its tensors.

    Raises:
        UsageError: it holds no state, states that differ, or what torch does not load without running it.
        StorageError: it cannot be read.
        MissingPackageError: it is no JSON, and torch is not installed.
    """
    path = Path(path)
    states = [each for each in islice(_mappings(_content(path)), _MOST_VALUES) if each.keys() == _NAMES]
    distinct = {json.dumps([str(each[name]) for name in sorted(_NAMES)]): each for each in states}
    if len(distinct) != 1:
        found = f"{len(distinct)} different states of loaders" if distinct else "no state of a dlio loader"
        raise UsageError(
            f"{path} holds {found}: give a file with one, such as torch.save(loader.state_dict(), 'run.pt')"
        )
    return next(iter(distinct.values()))


def _content(path: Path) -> object:
    with storage_errors("read", path), path.open("rb") as file:
        head = file.read(_MOST_BYTES)
    try:
        return json.loads(head)
    except (ValueError, RecursionError):
        pass
    with needs_package("torch", "torch", f"reading {path}"):
        import torch
    try:
        is_zip = head.startswith(b"PK")  # else it is torch's old kind, which cannot be mapped
        with warnings.catch_warnings(action="ignore"):  # about a file that torch did not write, before the error
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip or None)
    except (*_DAMAGED, pickle.UnpicklingError) as error:
        text = str(error)  # what torch advises in it would run the code
        problem = (text.partition("WeightsUnpickler error: ")[2] or text).partition("\n")[0].partition(". ")[0]
        raise UsageError(
            f"{path} is not JSON, and torch cannot load it without running code in it ({problem:.200}): save the "
            "loader's state alone, by torch.save(loader.state_dict(), 'run.pt')"
        ) from error


def _mappings(content: object) -> Iterator[Mapping[Any, Any]]:
    """Yields the mappings in nested mappings and sequences."""
    waiting, seen = [content], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or not isinstance(value, Mapping | Sequence) or isinstance(value, str | bytes):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            yield value
        waiting += value.values() if isinstance(value, Mapping) else value
