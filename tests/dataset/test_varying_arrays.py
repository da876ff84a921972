"""Arrays of varying shape: read where they stay, whatever the format; wrong or missing shapes, and damage."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.bulk import values
from dlio.dataset.manifest import Manifest
from dlio.dataset.reader import ShardReader
from dlio.dataset.sample_table import SampleTable, SampleTableBuilder
from dlio.dataset.schema import Array, Sample, Schema
from dlio.errors import CorruptRecordError
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from tests.loaders.packing import pack_samples

HOLDING = [name for name in formats.names() if formats.load(name).refuses(Schema.of({"a": "int8[?,?]"})) is None]
COUNT, SIDES = 12, [0, 1, 7, 64]


def arrays_of(kind: str) -> list[Array]:
    """Returns arrays of a kind, of up to 64 x 64 numbers."""
    field, numbers = Schema.of({"volume": kind})["volume"], np.random.default_rng(2)
    made = []
    for row in range(COUNT):
        shape = [SIDES[(row + at) % len(SIDES)] if dim is None else dim for at, dim in enumerate(field.shape)]
        made.append(numbers.integers(0, 2, shape).astype(field.dtype))
    return made


def packed(folder: Path, name: str, kind: str, arrays: list[Array]) -> Manifest:
    schema = Schema.of({"label": "int64", "volume": kind, "pose": "float32[2]"})
    made = [
        Sample(f"k{row}", {"label": row, "volume": array, "pose": np.full(2, row, "float32")})
        for row, array in enumerate(arrays)
    ]
    return pack_samples(folder, schema, made, num_shards=1, name=name)


@pytest.fixture(params=[0, 1 << 20], ids=["sought", "read whole"])
def sought(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a value is searched before its record is read."""
    monkeypatch.setattr(values, "_SOUGHT_BYTES", request.param)


@pytest.mark.usefixtures("sought")
@pytest.mark.parametrize("kind", ["uint8[?,?,3]", "float32[]", "float64[?,2]", "bool[?,?]", "int16[4,?]"])
@pytest.mark.parametrize("name", HOLDING)
def test_they_are_read_without_their_records(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = arrays_of(kind)
    manifest = packed(tmp_path, name, kind, arrays)
    chosen = np.array([1, 2, 3, 7, 11])
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        monkeypatch.setattr(shard, "read", None)
        for _ in range(2):  # the second time the places of all are known
            found = shard.read_columns(chosen)
            assert list(found["label"]) == chosen.tolist()
            for row, array in zip(chosen, found["volume"], strict=True):
                assert (array.dtype, array.shape) == (arrays[row].dtype, arrays[row].shape)
                assert np.array_equal(array, arrays[row]) and array.flags.writeable and array.flags.aligned


@pytest.mark.parametrize("name", HOLDING)
def test_each_batch_has_its_own_and_threads_share_the_reading(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlio.loaders.batch_sources._READ_BYTES", 2000)
    arrays = arrays_of("float32[?,?]")
    manifest = packed(tmp_path, name, "float32[?,?]", arrays)
    with closing(Loader(ArrayBatches(PackedSamples(manifest)), 4, shuffle=True, num_workers=2)) as loader:
        for _ in range(2):
            batches = list(loader)
            for batch in batches:
                for array in batch["volume"]:
                    array += 1  # of this batch alone
            assert sorted(int(row) for batch in batches for row in batch["label"]) == list(range(COUNT))
            for batch in batches:
                rows = zip(batch["label"], batch["volume"], strict=True)
                assert all(np.array_equal(array, arrays[row] + 1) for row, array in rows)


@pytest.mark.usefixtures("sought")
@pytest.mark.parametrize("name", HOLDING)
def test_a_flipped_bit_is_found_and_named(name: str, tmp_path: Path) -> None:
    arrays = [np.random.default_rng(row).integers(0, 256, (9, 5 + row), np.uint8) for row in range(COUNT)]
    manifest = packed(tmp_path, name, "uint8[?,?]", arrays)
    path = next(tmp_path / file.name for file in manifest.shards[0].files if not file.name.endswith((".idx", ".npz")))
    data = bytearray(path.read_bytes())
    data[data.index(arrays[5].tobytes()) + 20] ^= 1
    path.write_bytes(data)
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        for _ in range(2):
            with pytest.raises(CorruptRecordError) as caught:
                shard.read_columns(np.arange(COUNT))
            assert caught.value.record == 5


LIES = {
    "negative": [-9, -7],
    "another shape of the size": [7, 9],
    "beyond 64 bits, which wraps": [2**62 + 9, 7],
    "nothing by wrapping": [2**32, 2**32],
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_no_shape_that_a_table_claims_is_believed(lie: list[int], tmp_path: Path) -> None:
    arrays = [np.full((9, 7), row, np.uint8) for row in range(COUNT)]
    manifest = packed(tmp_path, "recordio", "uint8[9,?]" if lie == [7, 9] else "uint8[?,?]", arrays)
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        assert shard._table is not None
        shapes = shard._table.shapes("volume")
        assert shapes is not None and shapes.tolist() == [[9, 7]] * COUNT
        shard._table._arrays["shape_volume"] = np.array([lie, *shapes[1:].tolist()])
        read = shard.read_columns(np.arange(COUNT))["volume"]
        assert all(np.array_equal(array, expected) for array, expected in zip(read, arrays, strict=True))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_that_shrinks_is_named(is_known: bool, tmp_path: Path) -> None:
    """Before the places of its values are known, and after."""
    manifest = packed(tmp_path, "tfrecord", "float32[?,3]", [np.full((40, 3), row, np.float32) for row in range(COUNT)])
    path = tmp_path / manifest.shards[0].files[0].name
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        if is_known:
            shard.read_columns(np.arange(COUNT))
        os.truncate(path, path.stat().st_size - 203)
        with pytest.raises(CorruptRecordError, match=f"record {COUNT - 1}"):
            shard.read_columns(np.arange(COUNT))


def test_a_table_without_shapes_is_read_sample_by_sample(tmp_path: Path) -> None:
    """As those of earlier versions are."""
    arrays = arrays_of("float32[?,3]")
    manifest = packed(tmp_path, "tfrecord", "float32[?,3]", arrays)
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        assert shard._table is not None
        del shard._table._members["shape_volume.npy"]
        assert shard._values() is None
        read = shard.read_columns(np.arange(COUNT))["volume"]
        assert all(np.array_equal(array, expected) for array, expected in zip(read, arrays, strict=True))


def test_shapes_stay_in_tables_that_are_joined_or_get_other_keys(tmp_path: Path) -> None:
    schema = Schema.of({"volume": "int8[?,?]"})
    builder = SampleTableBuilder(schema)
    for row in range(3):
        builder.append(Sample(f"{row}", {"volume": np.zeros((row, 5), np.int8)}))
    path = tmp_path / "shard.samples.npz"
    path.write_bytes(builder.to_bytes())

    def shapes(data: bytes, count: int) -> list[list[int]] | None:
        path.write_bytes(data)
        with closing(SampleTable(path, schema, count)) as found:
            given = found.shapes("volume")
            return None if given is None else given.tolist()

    with closing(SampleTable(path, schema, 3)) as table, closing(SampleTable(path, schema, 3)) as older:
        del older._members["shape_volume.npy"]
        joined, mixed = (SampleTable.joined([table, other], schema) for other in (table, older))
        renamed = table.with_keys(["a", "b", "c"])
    assert shapes(renamed, 3) == [[0, 5], [1, 5], [2, 5]]
    assert shapes(joined, 6) == [[0, 5], [1, 5], [2, 5]] * 2
    assert shapes(mixed, 6) is None
