"""Batches from many shards at a time: the samples that each shard gives alone, damage named, few shards open."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio import formats, native
from dlio.dataset import pool
from dlio.dataset.bulk import ranges
from dlio.dataset.manifest import Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, StorageError
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.opened import joined_data
from tests.loaders.packing import damage, pack_samples

NUM_SHARDS, COUNT = 20, 200
SCHEMA = Schema.of({"image": "bytes", "label": "int64"})


def packed(folder: Path, name: str = "tfrecord") -> Manifest:
    """Packs samples whose images have none to 200,000 bytes."""
    random = np.random.default_rng(0)
    images = [random.bytes(int(2 ** random.uniform(0, 17.6)) - 1) for _ in range(COUNT)]
    samples = [Sample(f"{number:03}", {"image": image, "label": number}) for number, image in enumerate(images)]
    return pack_samples(folder, SCHEMA, samples, num_shards=NUM_SHARDS, name=name)


def with_pool(samples: PackedSamples, max_open: int | None = None) -> PackedSamples:
    """Returns the samples, of which some shards may be open at a time."""
    return samples.over(replace(samples.opened, pool=ShardPool(samples.manifest, max_open=max_open)))


@pytest.mark.parametrize("name", formats.names())
def test_batches_of_many_shards_are_the_samples(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_RUN_BYTES", 100_000)  # several reads, and values that are longer
    samples = PackedSamples(packed(tmp_path, name))
    expected = [sample.fields for sample in samples.read(range(COUNT))]
    samples.close()
    for max_open in (None, 3):
        samples = with_pool(samples, max_open=max_open)
        for epoch in range(2):  # the first one searches where the images begin
            order = np.random.default_rng(epoch).permutation(COUNT)
            for indices in np.array_split(order, 3):
                batch = samples.read_columns(indices)
                assert [bytes(image) for image in batch["image"]] == [expected[i]["image"] for i in indices]
                assert batch["label"].tolist() == indices.tolist()
        assert len(samples.opened.pool._slots) <= (max_open or NUM_SHARDS)
        samples.close()


def test_a_damaged_record_among_many_shards_is_named(tmp_path: Path) -> None:
    manifest = packed(tmp_path)
    samples = PackedSamples(manifest)
    largest = 70 + max(range(10), key=lambda record: len(samples.read([70 + record])[0].fields["image"]))
    damage(manifest, largest - 70, shard=7)
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=rf"00007.*{largest:03}") as caught:
            samples.read_columns(np.arange(0, COUNT)[::-1])
        assert caught.value.record == largest - 70
    assert [slot.num_users for slot in samples.opened.pool._slots.values()] == [0] * NUM_SHARDS
    samples.close()


@pytest.mark.skipif(not native.available, reason="the compiled core is not installed")
def test_a_file_that_cannot_be_read_among_many_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = PackedSamples(packed(tmp_path))
    for _ in range(2):
        samples.read_columns(np.arange(COUNT))
    read_ranges, broken = native.read_ranges, str(tmp_path / "shard-00011.tfrecord")

    def failing(descriptors: Any, starts: Any, sizes: Any, out: Any, places: Any, crcs: Any) -> Any:
        """Fails at the first range of the broken file, as a disk does."""
        good = [str(Path(f"/proc/self/fd/{each}").readlink()) != broken for each in descriptors]
        count = good.index(False) if False in good else len(good)
        some = [array[:count] for array in (descriptors, starts, sizes)]
        counts, _, _, waited = read_ranges(*some, out, places[:count], crcs[:count])
        found = np.zeros(len(starts), np.int64)
        found[:count] = counts
        return found, count, 0 if count == len(starts) else errno.EIO, waited

    monkeypatch.setattr(native, "read_ranges", failing)
    with pytest.raises(StorageError, match=f"cannot read {broken} at [0-9]+: Input/output error"):
        samples.read_columns(np.arange(COUNT))
    samples.close()


@pytest.mark.skipif(not native.available, reason="the compiled core is not installed")
def test_values_of_all_shards_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, together = PackedSamples(packed(tmp_path, "recordio")), []

    def counted(ranges: Any, take: Any) -> Any:
        together.append(len(ranges))
        return read_values(ranges, take)

    read_values = pool.read_values
    monkeypatch.setattr(pool, "read_values", counted)
    samples.read_columns(np.arange(COUNT))
    samples = with_pool(samples, max_open=NUM_SHARDS - 1)
    samples.read_columns(np.arange(COUNT))
    samples = with_pool(samples)
    monkeypatch.setattr(pool, "_num_open_shards", lambda: NUM_SHARDS - 1)
    monkeypatch.setattr(pool, "_MANY_THREADS", 2)
    samples.read_columns(np.arange(COUNT))
    assert together == [NUM_SHARDS, *[1] * NUM_SHARDS, 9, 9, 2]
    samples.close()


def test_threads_together_open_no_more_shards_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MANY_THREADS", 4)
    samples, most = PackedSamples(packed(tmp_path)), 12  # 4 threads borrow 3 each
    samples = with_pool(samples, max_open=most)
    opened, peak, lock = 0, 0, threading.Lock()

    def counted_open(*given: Any) -> Any:
        nonlocal opened, peak
        reader = shard_reader(*given)
        with lock:
            opened += 1
            peak = max(peak, opened)
        close = reader.close

        def counted_close() -> None:
            nonlocal opened
            close()
            with lock:
                opened -= 1

        reader.close = counted_close
        return reader

    shard_reader = pool.ShardReader
    monkeypatch.setattr(pool, "ShardReader", counted_open)

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(COUNT)
        return bool((samples.read_columns(order)["label"] == order).all())

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(24)))
    assert NUM_SHARDS > most >= peak
    samples.close()


def test_a_part_without_shards_changes_nothing(tmp_path: Path) -> None:
    samples = PackedSamples(packed(tmp_path))
    empty = PackedSamples(replace(samples.manifest, shards=()))
    joined = samples.over(joined_data([empty.opened, samples.opened]))
    indices = np.arange(COUNT)[::-1]
    assert joined.read_columns(indices)["label"].tolist() == indices.tolist()
    samples.close()
