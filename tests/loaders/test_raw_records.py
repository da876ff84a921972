"""Batches of bytes as they are stored: views of memory that is used again, and never while a view of it is left."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.batches import make
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from tests.helpers.lazy import Lazy
from tests.loaders.packing import damage, pack_samples

torch = Lazy("dlio.loaders.torch")
COUNT, BATCH = 120, 20
SCHEMA = Schema.of({"picture": "bytes", "label": "int64"})


def value(number: int) -> bytes:
    """Returns the bytes of a sample, 0 to 150,000 of them."""
    chance = random.Random(number)
    return chance.randbytes(chance.choice([0, 3, 2_000, 90_000, 150_000]))


VALUES = [value(number) for number in range(COUNT)]


def pack(folder: Path, name: str = "tfrecord") -> Manifest:
    samples = [Sample(str(i), {"picture": data, "label": i}) for i, data in enumerate(VALUES)]
    return pack_samples(folder, SCHEMA, samples, num_shards=3, name=name)


def loader_of(manifest: Manifest, **options: Any) -> Loader:
    """Returns a loader of encoded bytes, shuffled."""
    source = ArrayBatches(PackedSamples(manifest))
    return Loader(source, BATCH, **({"shuffle": True, "num_workers": 2, "rank_and_size": lambda: (0, 1)} | options))


def is_true(batch: Any) -> bool:
    """Returns whether each value is that of its label."""
    return all(data == VALUES[label] for data, label in zip(batch["picture"], batch["label"].tolist(), strict=True))


@pytest.fixture(scope="module", params=formats.names())
def packed_anyhow(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Manifest:
    """The pictures in 3 shards of each format in turn."""
    return pack(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {}, {"prefetch": 5, "shuffle": False}], ids=str)
def test_what_is_kept_stays_what_it_was(packed_anyhow: Manifest, options: dict[str, Any]) -> None:
    loader = loader_of(packed_anyhow, **options)
    batches, values = [], []
    for epoch in range(4):
        for number, batch in enumerate(loader):
            assert is_true(batch) and all(data.readonly for data in batch["picture"])
            if (number + epoch) % 4 == 0:
                batches.append(batch)
            else:
                values.append((batch["picture"][3], int(batch["label"][3])))
            del batch
    loader.close()
    assert all(map(is_true, batches)) and all(data == VALUES[label] for data, label in values)


def test_memory_is_used_again(tmp_path: Path) -> None:
    loader = loader_of(pack(tmp_path))
    pieces: set[int] = set()
    for _ in range(6):
        for batch in loader:
            kept = loader.source.samples.opened.read_memory._kept
            memory = {id(piece): np.frombuffer(piece._aligned, np.uint8) for piece in kept}
            holding = [key for data in batch["picture"] for key in memory if np.shares_memory(memory[key], data)]
            assert len(holding) == sum(len(data) > 0 for data in batch["picture"])
            pieces.update(holding)
            del batch, kept, memory
    assert len(pieces) <= 8  # for 36 batches, four at a time, of no more than two pieces each
    loader.close()


def cut(manifest: Manifest) -> None:
    """Takes the last bytes of the first shard away."""
    path = manifest.root / manifest.shards[0].files[0].name
    os.truncate(path, path.stat().st_size - 1000)


@pytest.mark.parametrize("harm", [lambda manifest: damage(manifest, 7), cut])
def test_damage_is_named_in_reused_memory(tmp_path: Path, harm: Callable[[Manifest], None]) -> None:
    manifest = pack(tmp_path)
    loader = loader_of(manifest, shuffle=False, num_workers=0)
    assert all(map(is_true, loader))
    harm(manifest)
    with pytest.raises(CorruptRecordError) as caught:
        list(loader)
    assert caught.value.record is not None and caught.value.offset is not None
    assert f"sample '{caught.value.record}'" in str(caught.value)
    assert str(manifest.root / manifest.shards[0].files[0].name) in str(caught.value)
    loader.close()


def test_a_batch_outlives_its_loader(tmp_path: Path) -> None:
    loader = loader_of(pack(tmp_path))
    batches = iter(loader)
    first = next(batches)
    loader.close()
    assert all(map(is_true, loader)) and is_true(first)
    loader.close()


def test_a_forked_child_reads_into_memory_of_its_own(tmp_path: Path) -> None:
    loader = loader_of(pack(tmp_path), num_workers=0)
    kept = next(iter(loader))
    child = os.fork()
    if child == 0:
        os._exit(0 if all(map(is_true, loader)) and is_true(kept) else 1)
    assert all(map(is_true, loader)) and is_true(kept)
    assert os.waitpid(child, 0)[1] == 0
    loader.close()


def test_a_fork_while_threads_hold_the_locks_does_not_hang(tmp_path: Path) -> None:
    samples = PackedSamples(pack(tmp_path), max_skipped=1)
    with samples.clock._lock, samples.skips._lock, samples.memory._lock, samples.opened.read_memory._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(0 if is_true(make(samples, range(COUNT), key=0)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    samples.close()


def test_torch_gets_bytes(tmp_path: Path) -> None:
    dataset = torch.PackedDataset(pack(tmp_path))
    loader = torch.DataLoader(dataset, BATCH, num_workers=1)
    batch = next(iter(loader))
    assert batch["picture"] == VALUES[:BATCH] and {type(data) for data in batch["picture"]} == {bytes}
    loader.close()
