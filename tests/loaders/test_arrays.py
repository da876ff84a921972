"""Fields of arrays of one shape: read into the rows of their batch, whatever the order, the format and the damage."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import Batch, PackedSamples
from dlio.loaders.loader import Loader
from tests.loaders.packing import pack_samples

COUNT, SCHEMA = 30, Schema.of({"pixels": "float32[6,5]", "label": "int64", "pose": "uint8[3]"})
PIXELS = np.random.default_rng(3).random((COUNT, 6, 5), np.float32)


@pytest.fixture(params=formats.names())
def packed(tmp_path: Path, request: pytest.FixtureRequest) -> Manifest:
    samples = [Sample(f"{n}", {"pixels": PIXELS[n], "label": n, "pose": np.full(3, n, "u1")}) for n in range(COUNT)]
    return pack_samples(tmp_path / "packed", SCHEMA, samples, num_shards=3, name=request.param)


def loader_of(samples: PackedSamples, **options: Any) -> Loader[Batch]:
    return Loader(ArrayBatches(samples), batch_size=7, **options)


def is_true(batch: Batch) -> bool:
    label = batch["label"]
    return np.array_equal(batch["pixels"], PIXELS[label]) and (batch["pose"] == label[:, None]).all()


@pytest.mark.parametrize("num_threads", [0, 2])
def test_every_batch_holds_its_samples(packed: Manifest, num_threads: int) -> None:
    with closing(loader_of(PackedSamples(packed), shuffle=True, num_workers=num_threads)) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    assert all(map(is_true, batches)) and len(np.unique([n for b in batches for n in b["label"]])) > COUNT - 7


@pytest.mark.parametrize("name", formats.names())
def test_several_large_arrays_of_a_sample(name: str, tmp_path: Path) -> None:
    """They are read sample by sample, and each batch has memory for all of them."""
    schema = Schema.of({"first": "float32[64,64]", "second": "int32[5000]", "label": "int64"})
    first = np.random.default_rng(3).random((12, 64, 64), np.float32)
    second = np.arange(60_000, dtype="int32").reshape(12, 5000)
    made = [Sample(str(n), {"first": first[n], "second": second[n], "label": n}) for n in range(12)]
    manifest = pack_samples(tmp_path / "packed", schema, made, num_shards=2, name=name)
    with closing(Loader(ArrayBatches(PackedSamples(manifest)), 4, shuffle=True, num_workers=2, prefetch=1)) as loader:
        for batch in loader:
            assert np.array_equal(batch["first"], first[batch["label"]])
            assert np.array_equal(batch["second"], second[batch["label"]])
        assert loader.source.samples.memory.limit == 3 * len(schema)


def test_a_damaged_array_is_named_or_replaced(packed: Manifest) -> None:
    path = next(packed.root / file.name for file in packed.shards[0].files if not file.name.endswith((".idx", ".npz")))
    data = bytearray(path.read_bytes())
    data[data.index(PIXELS[4].tobytes()) + 50] ^= 1
    path.write_bytes(data)
    with closing(PackedSamples(packed)) as samples, pytest.raises(CorruptRecordError, match="record 4"):
        list(loader_of(samples, num_workers=0))
    with closing(loader_of(PackedSamples(packed, max_skipped=1), num_workers=0)) as loader:
        first = next(iter(loader))
    assert is_true(first) and 4 not in first["label"]


def test_the_system_is_rarely_asked_for_what_is_in_memory(packed: Manifest) -> None:
    with closing(PackedSamples(packed)) as samples:
        asked = []
        for _ in range(40):
            hint = samples.hint(np.arange(COUNT))
            asked.append(hint is not None)
            if hint is not None:
                hint()
    assert asked[0] and sum(asked) in (5, 40)  # 40 where the file system does not tell what is in memory
