"""For pytest in a process with Accelerate: its tests' loaders read numbers that dlio has packed.

`DataLoader` is dlio's, and the classes that Accelerate makes of a data set get dlio's in place of a list or range.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import dlio
import dlio.loaders.torch
from dlio.loaders.torch import PackedDataset

used: list[str] = []


def packed(numbers: Sequence[int]) -> PackedDataset:
    """Returns the numbers as samples."""
    folder = Path(tempfile.gettempdir(), f"numbers-{len(numbers)}")
    if not (folder / "manifest.jsonl").exists():
        with dlio.Writer(folder, format="recordio") as writer:
            for number in numbers:
                writer.write({"number": number})
    return PackedDataset(folder)


def collated(samples: Sequence[Any]) -> torch.Tensor:
    """Returns the numbers as the tests expect them."""
    return torch.tensor([int(sample["number"]) for sample in samples])


def ours(dataset: Any, **options: Any) -> dlio.loaders.torch.DataLoader:
    """Returns dlio's loader."""
    used.append("DataLoader")
    return dlio.loaders.torch.DataLoader(packed(dataset), collate_fn=collated, **options)


def over_dlio(loader: Any) -> Any:
    """Returns a function that makes a loader of Accelerate's over dlio's data set."""

    def made(dataset: Any, **options: Any) -> Any:
        used.append(loader.__name__)
        return loader(packed(dataset), collate_fn=collated, **options)

    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replaces the loaders of the tests' module."""
    module = items[0].module  # type: ignore[attr-defined]
    module.DataLoader = ours
    for name in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        setattr(module, name, over_dlio(getattr(module, name)))


def pytest_sessionfinish() -> None:
    """Prints what was replaced and used."""
    sys.stdout.write(f"used {' '.join(sorted(set(used)))}\n")
