"""How iterations end: by damage, early, or in a forked child, without threads or memory left over."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.errors import CorruptRecordError, UsageError
from dlio.images import Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from tests.loaders.packing import damage
from tests.loaders.photos import loader_of, numbers


def test_damage_is_raised_in_the_consumer_at_its_batch(packed: Manifest, tmp_path: Path) -> None:
    shutil.copytree(packed.root, tmp_path / "copy")
    copy = Manifest.load(tmp_path / "copy")
    damage(copy, record=2, shard=5)
    loader = loader_of(copy, 4)
    batches = iter(loader)
    good = numbers(batch for batch, _ in zip(batches, range(6), strict=False))
    assert good == list(range(24))
    with pytest.raises(CorruptRecordError, match=r"shard-0*5\D.*record \d+, offset \d+") as caught:
        list(batches)
    assert caught.value.record is not None
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dlio")]
    loader.close()


def leave_by_break(loader: Loader) -> None:
    for _ in loader:
        break


def leave_by_error(loader: Loader) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        for _ in loader:
            raise RuntimeError("stop")


def leave_by_close(loader: Loader) -> None:
    batches = iter(loader)
    next(batches)
    loader.close()
    assert list(batches) == []


def never_start(loader: Loader) -> None:
    iter(loader)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_close, never_start])
def test_a_consumer_that_stops_early_leaves_nothing_running(packed: Manifest, leave: Callable[[Loader], None]) -> None:
    loader = loader_of(packed)
    leave(loader)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dlio")]
    loader.close()
    assert len(list(loader)) == 10  # it can be used again
    loader.close()


def test_a_forked_child_iterates_on_its_own(packed: Manifest) -> None:
    loader = loader_of(packed)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        os._exit(0 if len(numbers(loader)) == 40 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(numbers(batches)) == 36
    loader.close()


def test_a_forked_iteration_ends_in_the_child_with_a_reason(packed: Manifest) -> None:
    loader = loader_of(packed, num_workers=2)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except UsageError as error:
            os._exit(0 if "start a new iteration over the loader" in str(error) and next(batches, None) is None else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(numbers(batches)) == 36
    loader.close()


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_memory_of_a_released_batch_is_reused(packed: Manifest, prefetch: int) -> None:
    samples = PackedSamples(packed, Resize(512))  # 8 images take 6 MB
    loader = Loader(
        ArrayBatches(samples), 8, rank_and_size=lambda: (0, 1), num_workers=2, prefetch=prefetch, end="drop"
    )
    held = [batch["image"] for batch in loader]
    first = [image.copy() for image in held]
    for batch in loader:
        assert not any(np.shares_memory(batch["image"], image) for image in held)
    assert all((now == before).all() for now, before in zip(held, first, strict=True))
    del held, batch
    addresses = {batch["image"].ctypes.data for _ in range(3) for batch in loader}
    kept = {np.frombuffer(piece._aligned, np.uint8).ctypes.data for piece in samples.memory._kept}
    assert len(addresses) <= prefetch + 2 and addresses <= kept
    loader.close()
