"""Transforms written in Python: worker processes make the same batches, in order, with the same state and errors."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, TimedOutError
from dlio.images import Resize
from tests.helpers.images import image
from tests.helpers.lazy import Lazy
from tests.loaders.packing import damage, pack_samples

torch = Lazy("torch")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


ORDER: dict[str, Any] = {"shuffle": True, "seed": 4, "rank": 0, "world_size": 1}


def first_pixel(picture: Any) -> torch.Tensor:
    """Returns what a function of a PIL image may: here three numbers."""
    return torch.tensor(picture.getpixel((0, 0)))


def with_process(picture: Any) -> int:
    return os.getpid()


def drawn(picture: Any) -> list[float]:
    return [random.random(), float(torch.rand(1)), float(np.random.random())]


class RefusedError(ValueError):
    """An error that cannot be pickled with its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def refuse(picture: Any) -> int:
    raise RefusedError(1, 2)


def loader_of(packed: Any, transform: Any, workers: int = 2, **options: Any) -> DataLoader:
    return DataLoader(PackedDataset(packed, transform), 4, num_workers=workers, **(ORDER | options))


def test_batches_are_those_of_one_process(packed: Manifest) -> None:
    for options in ({}, {"end": "mask"}, {"collate_fn": lambda items: [pixel.tolist() for pixel, _ in items]}):
        inside, outside = (loader_of(packed, first_pixel, workers, **options) for workers in (0, 2))
        assert len(inside) == len(outside)
        for _ in range(2):
            for one, two in zip(inside, outside, strict=True):
                assert str(one) == str(two)
        assert inside.state_dict() == outside.state_dict()
        assert outside.stats()["decode_seconds"] >= 0 and outside.stats()["collate_seconds"] > 0
        outside.close()
    assert not multiprocessing.active_children()


def test_the_transform_runs_in_other_processes_and_dlios_in_threads(packed: Manifest) -> None:
    made = loader_of(packed, with_process)
    assert os.getpid() not in torch.cat([pids for pids, _ in made]).unique().tolist()
    made.close()
    threads = loader_of(packed, Resize(8))
    next(iter(threads))
    assert not multiprocessing.active_children()
    threads.close()


def test_a_run_resumes_in_mid_epoch(packed: Manifest) -> None:
    whole, first, second = (loader_of(packed, first_pixel) for _ in range(3))
    wanted = [str(batch) for batch in whole]
    batches = iter(first)
    begun = [str(next(batches)) for _ in range(3)]
    second.load_state_dict(first.state_dict())
    del batches
    assert begun + [str(batch) for batch in second] == wanted
    for loader in (whole, first, second):
        loader.close()
    assert not multiprocessing.active_children()


def test_random_transforms_repeat_with_any_number_of_workers(packed: Manifest) -> None:
    runs = []
    for workers in (1, 3):
        loader = loader_of(packed, drawn, workers)
        runs.append([str(batch) for _ in range(2) for batch in loader])
        loader.close()
    assert runs[0] == runs[1] and len(set(runs[0])) == len(runs[0])


def test_workers_persist_between_epochs_where_asked(packed: Manifest) -> None:
    loader = loader_of(packed, with_process, persistent_workers=True)
    epochs = [torch.cat([pids for pids, _ in loader]).unique().tolist() for _ in range(2)]
    assert epochs[0] == epochs[1]
    next(iter(loader))  # an epoch that is left
    assert sum(len(labels) for _, labels in loader) == 41
    loader.close()
    assert not multiprocessing.active_children()


def test_a_damaged_record_is_named_as_with_threads(tmp_path: Path) -> None:
    fields = {"image": image(1), "label": 0}
    samples = [Sample(str(number), fields) for number in range(8)]
    manifest = pack_samples(tmp_path, Schema.of({"image": "bytes", "label": "int64"}), samples, num_shards=1)
    damage(manifest, 6)
    loader = DataLoader(PackedDataset(tmp_path, first_pixel), 4, num_workers=1, rank=0, world_size=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(CorruptRecordError, match="shard-00000") as caught:
        next(batches)
    assert caught.value.record == 6 and "in a worker process" in caught.value.__notes__[0]
    loader.close()


def test_errors_that_cannot_be_sent_are_still_named(packed: Manifest) -> None:
    loader = loader_of(packed, refuse)
    with pytest.raises((RuntimeError, RefusedError), match="1 and 2"):  # some packages make all errors picklable
        next(iter(loader))
    loader.close()


def hang(picture: Any) -> int:
    time.sleep(600)
    return 0


def test_a_transform_that_hangs_is_given_up_in_time(packed: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # how long torch waits for its end
    loader = loader_of(packed, hang, 1, timeout=0.3)
    with pytest.raises(TimedOutError, match=r"longer than 0\.3 s, that of 4 samples of shard-"):
        next(iter(loader))
    loader.close()


def die(picture: Any) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_worker_that_is_killed_ends_the_iteration(packed: Manifest) -> None:
    loader = loader_of(packed, die, 1)
    with pytest.raises(RuntimeError, match="worker"):
        next(iter(loader))
    loader.close()
