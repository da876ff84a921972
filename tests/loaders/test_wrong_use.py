"""Loaders with wrong arguments: the error names the argument and says what to give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.images import CenterCrop
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.mixture import Mixture
from dlio.loaders.opened import joined_data, open_data

WRONG: dict[str, tuple[Callable[[Manifest], Any], str]] = {
    "a class": (lambda packed: PackedSamples(packed, CenterCrop), "is not a transform of dlio.images, such as"),
    "a function": (lambda packed: PackedSamples(packed, len), "is not a transform of dlio.images, such as"),
    "a manifest to cache": (lambda packed: PackedSamples(packed, cache=True), "needs the folder or URL of a data set"),
    "no samples": (lambda packed: Mixture([(packed, 1.0)], epoch_samples=0), "epoch_samples=0: expected a number"),
    "a part": (
        lambda packed: joined_data([open_data(packed), open_data(in_parts(packed))]),
        "is staged in parts: stage it by another strategy",
    ),
}  # fmt: skip


def in_parts(packed: Manifest) -> Manifest:
    return replace(packed, shards=tuple(shard.replace(nodes=(0,)) for shard in packed.shards))


@pytest.mark.parametrize("what", list(WRONG))
def test_what_does_not_fit_is_named(packed: Manifest, what: str) -> None:
    use, said = WRONG[what]
    with pytest.raises(UsageError, match=said):
        use(packed)
