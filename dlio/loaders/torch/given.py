"""What a DataLoader is given: a data set, opened or not, or some of its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.loaders.mixture import Mixture
from dlio.loaders.options import Options
from dlio.loaders.torch.dataset import PackedDataset, chosen_part


def samples_of(given: Any, transform: Any, options: Options, *, ascending: bool) -> PackedDataset:
    """Returns the samples of what a loader is given; raises UsageError."""
    if isinstance(given, str | Path | Manifest | Mixture):
        return PackedDataset(given, **options.of_samples() | {"transform": transform})
    advice = "give it to PackedDataset"
    options.check_no_samples("a dataset", advice)
    if transform is not None:
        raise UsageError(f"transform={transform!r} with a dataset: {advice}")
    chosen: PackedDataset = chosen_part(given, ascending=ascending)
    return chosen


def check_makes_batches(dataset: object, *, collates: bool, sized: bool) -> None:
    """Checks that batches can be made of the samples; raises UsageError."""
    if not isinstance(dataset, PackedDataset):
        raise UsageError(f"dlio's DataLoader reads a PackedDataset, not {type(dataset).__name__}: use torch's own")
    if dataset.makes_images and not collates:
        raise UsageError(
            "images of different sizes cannot form a batch: give the PackedDataset a transform, or a collate_fn here"
        )
    if not sized:
        raise UsageError("batch_size=None: dlio's DataLoader makes batches; use torch's own for single samples")
