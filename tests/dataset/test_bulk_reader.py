"""Values read by offset, many at once: equal to those read record by record; damage is named, guesses are verified."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio import formats, native
from dlio.dataset.bulk import ranges
from dlio.dataset.bulk.values import BulkValues, large_field, open_values
from dlio.dataset.manifest import Manifest
from dlio.dataset.reader import ShardReader
from dlio.dataset.schema import Field, Sample, Schema
from dlio.errors import CorruptRecordError
from dlio.formats import Spans, recordio, tfrecord
from dlio.io import random_access
from dlio.io.random_access import Numbers, OutRows, RandomAccessFile, take_fresh
from tests.helpers.rounds import ROUNDS
from tests.loaders.packing import pack_samples

SCHEMAS = {
    "one label": {"image": "bytes", "label": "int64"},
    "label first": {"label": "int64", "image": "bytes"},
    "several labels": {"image": "bytes", "label": "float32[14]"},
    "other names": {"weight": "float64", "picture": "bytes", "box": "int32[2,2]", "is_new": "bool"},
    "bytes alone": {"picture": "bytes"},
}
ARRAYS = ["uint8[32,32,3]", "int32[80]", "float32[100]", "float64[9,9]", "bool[300]", "int16[7,50]", "uint64[40]"]
ARRAYS += ["float16[200]"]
COUNT = 90


def samples_of(schema: Schema) -> list[Sample]:
    """Returns samples whose bytes have none to 40,000 bytes, some with RecordIO's magic number at a border of words."""
    chance, numbers = random.Random(0), np.random.default_rng(0)
    made = []
    for number in range(COUNT):
        data = chance.randbytes(chance.choice([0, 1, 127, 128, 700, 16_384, 40_000]))
        data += b"\x0a\x23\xd7\xce" * (8 if number % 7 == 0 else 0)
        fields = {
            name: data if kind.dtype == "bytes" else numbers.integers(0, 2, kind.shape).astype(kind.dtype)
            for name, kind in schema.fields
        }
        made.append(schema.check(Sample(f"folder {number % 3}/{number}" + "x" * (number % 40), fields)))
    return made


def equal(value: object, expected: object) -> bool:
    """Returns whether a column's value is the record's: bytes come as views that cannot be written to."""
    if isinstance(expected, bytes):
        return isinstance(value, memoryview) and value.readonly and value == expected
    return np.array_equal(value, expected)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[(n, s) for n in formats.names() for s in SCHEMAS], ids=str)
def packed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Manifest:
    """90 samples of each schema in a shard of each format."""
    name, schema = request.param
    kind = Schema.of(SCHEMAS[schema])
    return pack_samples(tmp_path_factory.mktemp(name), kind, samples_of(kind), num_shards=1, name=name)


@settings(max_examples=10 * ROUNDS)
@given(chosen=st.lists(st.integers(0, COUNT - 1), max_size=40).map(sorted))
def test_columns_are_what_the_records_hold(packed: Manifest, chosen: list[int]) -> None:
    shard = ShardReader(packed, packed.shards[0])
    read = shard.read_columns(np.array(chosen, dtype=np.int64))
    assert list(read) == list(packed.schema)
    for row, index in enumerate(chosen):
        fields = shard.read(index).fields
        assert fields.keys() == read.keys()
        assert all(equal(read[name][row], fields[name]) for name in fields)
    shard.close()


def test_the_places_of_all_values_are_known(packed: Manifest) -> None:
    """All but those that RecordIO cuts into parts."""
    shard = ShardReader(packed, packed.shards[0])
    values = shard._values()
    assert values is not None and values.name == large_field(packed.schema)
    name = values.name
    columns, doubtful = values.columns(np.arange(COUNT), take_fresh, {})
    read = columns[name]
    expected = [sample.fields[name] for sample in samples_of(packed.schema)]
    cut = [row for row, value in enumerate(expected) if b"\x0a\x23\xd7\xce" in value]
    assert set(doubtful) <= set(cut if packed.format == "recordio" else [])
    assert [read[row] for row in range(COUNT) if row not in doubtful] == [
        value for row, value in enumerate(expected) if row not in doubtful
    ]
    shard.close()


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("name", formats.names())
def test_arrays_are_read_at_their_offsets(name: str, kind: str, tmp_path: Path) -> None:
    schema = Schema.of({"pixels": kind, "label": "int64"})
    pixels = schema["pixels"]
    values = np.random.default_rng(1).integers(0, 100, (20, *pixels.fixed_shape)).astype(pixels.dtype)
    samples = [Sample(f"k{row}", {"pixels": value, "label": row}) for row, value in enumerate(values)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1, name=name)
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        bulk_reader = shard._values()
        assert (bulk_reader is None) == (name in ("recordio", "tfrecord", "lmdb") and pixels.dtype == "int32")
        if bulk_reader is not None:
            read, doubtful = bulk_reader.columns(np.arange(20), take_fresh, {})
            assert doubtful == [] and np.array_equal(read["pixels"], values)
        columns = shard.read_columns(np.array([3, 4, 19]))
        assert np.array_equal(columns["pixels"], values[[3, 4, 19]]) and list(columns["label"]) == [3, 4, 19]
        rows = OutRows(np.zeros((5, *pixels.fixed_shape), pixels.dtype), np.array([4, 0, 2]))
        columns = shard.read_columns(np.array([3, 4, 19]), out={"pixels": rows})
        assert list(columns) == ["label"] and np.array_equal(rows.array[[4, 0, 2]], values[[3, 4, 19]])
        assert not rows.array[[1, 3]].any()
        assert np.array_equal(shard.read(7).fields["pixels"], values[7])


SEVERAL = {"clip": "float32[60]", "t5": "float32[40,50]", "step": "int64", "mean": "uint8[9000]"}


@pytest.mark.parametrize("name", formats.names())
def test_several_arrays_are_read_at_their_offsets(name: str, tmp_path: Path) -> None:
    """Where their offsets are known without a search, and else record by record."""
    schema = Schema.of(SEVERAL)
    numbers = np.random.default_rng(2)
    fields = [{key: numbers.integers(0, 100, kind.shape).astype(kind.dtype) for key, kind in schema.fields}] * 3
    fields += [{key: numbers.integers(0, 100, kind.shape).astype(kind.dtype) for key, kind in schema.fields}] * 3
    samples = [schema.check(Sample(f"k{row}", values)) for row, values in enumerate(fields)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1, name=name)
    records = np.array([0, 2, 3, 5])
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        bulk_reader = shard._values()
        assert (bulk_reader is None) == (name not in ("hdf5", "webdataset", "squashfs"))
        if bulk_reader is not None:
            assert bulk_reader.columns(records, take_fresh, {}, None)[1] == []
        rows = OutRows(np.zeros((5, 40, 50), np.float32), np.array([4, 0, 2, 1]))
        columns = shard.read_columns(records, out={"t5": rows})
        assert list(columns) == ["clip", "step", "mean"] and not rows.array[3].any()
        for at, record in enumerate(records.tolist()):
            assert np.array_equal(rows.array[rows.rows[at]], fields[record]["t5"])
            assert all(np.array_equal(columns[key][at], fields[record][key]) for key in columns)


@pytest.mark.parametrize("field", ["t5", "mean"])
@pytest.mark.parametrize("name", ["hdf5", "webdataset", "squashfs"])
def test_a_flipped_bit_of_one_of_several_arrays_is_found_and_named(name: str, field: str, tmp_path: Path) -> None:
    schema = Schema.of(SEVERAL)
    numbers = np.random.default_rng(3)
    fields = [{key: numbers.integers(0, 100, kind.shape).astype(kind.dtype) for key, kind in schema.fields}]
    fields += [{key: numbers.integers(0, 100, kind.shape).astype(kind.dtype) for key, kind in schema.fields}]
    samples = [schema.check(Sample(f"k{row}", values)) for row, values in enumerate(fields)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1, name=name)
    path = next(tmp_path / file.name for file in manifest.shards[0].files if not file.name.endswith((".idx", ".npz")))
    data = bytearray(path.read_bytes())
    data[data.index(fields[1][field].tobytes()) + 500] ^= 1
    path.write_bytes(data)
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        assert np.array_equal(shard.read_columns(np.array([0]))[field][0], fields[0][field])
        with pytest.raises(CorruptRecordError) as caught:
            shard.read_columns(np.arange(2))
        assert caught.value.record == 1


@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_planes_of_datums_come_as_they_were_packed(
    channels: int, core: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "available", core and native.available)
    schema = Schema.of({"image": f"uint8[32,40,{channels}]", "label": "int64"})
    values = np.random.default_rng(1).integers(0, 256, (20, 32, 40, channels)).astype("uint8")
    samples = [Sample(f"k{row}", {"image": value, "label": row}) for row, value in enumerate(values)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1, name="lmdb")
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        bulk_reader = shard._values()
        assert bulk_reader is not None
        read, doubtful = bulk_reader.columns(np.arange(20), take_fresh, {})
        assert doubtful == [] and np.array_equal(read["image"], values)
        rows = OutRows(np.zeros((5, 32, 40, channels), np.uint8), np.array([4, 0, 2]))
        shard.read_columns(np.array([3, 4, 19]), out={"image": rows})
        assert np.array_equal(rows.array[[4, 0, 2]], values[[3, 4, 19]]) and not rows.array[[1, 3]].any()
        assert np.array_equal(shard.read(7).fields["image"], values[7])


@pytest.mark.parametrize("name", formats.names())
def test_a_flipped_bit_of_an_array_is_found_and_named(name: str, tmp_path: Path) -> None:
    schema = Schema.of({"pixels": "uint8[32,32]", "label": "int64"})
    values = np.random.default_rng(1).integers(0, 256, (20, 32, 32)).astype("uint8")
    samples = [Sample(f"k{row}", {"pixels": value, "label": row}) for row, value in enumerate(values)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1, name=name)
    path = next(tmp_path / file.name for file in manifest.shards[0].files if not file.name.endswith((".idx", ".npz")))
    data = bytearray(path.read_bytes())
    data[data.index(values[9].tobytes()) + 500] ^= 1
    path.write_bytes(data)
    with closing(ShardReader(manifest, manifest.shards[0])) as shard:
        with pytest.raises(CorruptRecordError) as caught:
            shard.read_columns(np.arange(20))
        assert caught.value.record == 9


def test_every_flipped_bit_of_a_value_is_found_and_named(packed: Manifest) -> None:
    samples = samples_of(packed.schema)
    name = large_field(packed.schema) or ""
    record = next(row for row, sample in enumerate(samples) if row % 7 and len(sample.fields[name]) == 16_384)
    value = samples[record].fields[name]
    path = next(packed.root / file.name for file in packed.shards[0].files if not file.name.endswith((".idx", ".npz")))
    sound = path.read_bytes()
    assert sound.count(value) == 1
    data = bytearray(sound)
    data[sound.index(value) + 5000] ^= 4
    path.write_bytes(data)
    try:
        shard = ShardReader(packed, packed.shards[0])
        with pytest.raises(CorruptRecordError) as caught:
            shard.read_columns(np.arange(COUNT))
        assert caught.value.record == record
        shard.close()
    finally:
        path.write_bytes(sound)


def test_records_of_other_tools_are_read_one_by_one(tmp_path: Path) -> None:
    """Here the features of an Example stand in another order, under other names, and the labels are no table's."""
    schema = Schema.of(SCHEMAS["one label"])
    samples = [Sample(f"k{i}", {"image": bytes([i]) * 600, "label": i}) for i in range(5)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1)
    path = tmp_path / manifest.shards[0].files[0].name
    data = path.read_bytes()
    other = data.replace(b"image/encoded", b"image/ENCODED")
    path.write_bytes(other)
    shard = ShardReader(manifest, manifest.shards[0])
    values = shard._values()
    assert values is not None
    assert values.columns(np.arange(5), take_fresh, {})[1] == [0, 1, 2, 3, 4]
    with pytest.raises(CorruptRecordError, match="checksum"):  # it fell back to the record, which is damaged
        shard.read_columns(np.arange(5))
    shard.close()


@pytest.mark.parametrize("sizes", [-1, 2**62, 10**9])
def test_no_size_that_a_table_claims_is_believed(tmp_path: Path, sizes: int) -> None:
    schema = Schema.of(SCHEMAS["one label"])
    samples = [Sample(str(i), {"image": bytes(900), "label": i}) for i in range(4)]
    for name in (recordio, tfrecord):
        manifest = pack_samples(tmp_path / name.__name__, schema, samples, num_shards=1, name=name.__name__[13:])
        shard = ShardReader(manifest, manifest.shards[0])
        assert shard._table is not None
        shard._table._arrays["num_bytes"] = np.full(4, sizes)
        values = open_values(shard._reader, shard._table, schema)
        assert values is not None
        read, doubtful = values.columns(np.arange(4), take_fresh, {})
        assert doubtful == [0, 1, 2, 3] and sum(map(len, read["image"])) == 0
        assert shard.read_columns(np.arange(4))["image"] == [bytes(900)] * 4
        shard.close()


def test_a_prefetch_hint_opens_nothing_and_breaks_nothing(packed: Manifest) -> None:
    shard = ShardReader(packed, packed.shards[0])
    shard.prefetch_hint(np.arange(0, COUNT, 3))
    shard.prefetch_hint(np.arange(0))
    assert len(shard.read_columns(np.arange(0, COUNT, 3))[large_field(packed.schema) or ""]) == COUNT // 3
    shard.close()


@pytest.mark.parametrize(
    "types", [{"image": "bytes", "mask": "bytes"}, {"label": "int64"}, {"frames": "bytes[]", "label": "int64"}, {}]
)
def test_other_schemas_have_no_large_field(types: dict[str, str]) -> None:
    assert large_field(Schema.of(types)) is None


@pytest.mark.parametrize(("starts", "stops"), [(-100, 900), (0, 2**62), (2**62, 2**63 - 1), (900, 100)])
def test_no_span_that_leaves_the_file_is_read(tmp_path: Path, starts: int, stops: int) -> None:
    path = tmp_path / "shard"
    path.write_bytes(bytes(1000))
    crcs = np.zeros(3, dtype=np.uint32)
    for marker in (b"", b"\0"):
        file = RandomAccessFile(path)
        spans = Spans(file, np.full(3, starts), np.full(3, stops), np.zeros(3, np.int64), marker)
        values = BulkValues(
            "image", Field("bytes"), spans, np.full(3, 1 << 61 if stops > 1000 else 200), crcs, crcs + 1
        )
        values.prefetch_hint(np.arange(3))
        assert values.columns(np.arange(3), take_fresh, {}) == ({"image": [b""] * 3}, [0, 1, 2])
        file.close()


def test_offsets_that_do_not_rise_can_be_hinted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shard"
    path.write_bytes(bytes(100_000))
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "preadv", lambda *_: 0)  # nothing is in memory yet
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, count, advice: asked.append((start, count)))
    file = RandomAccessFile(path)
    file.will_need(np.array([90_000, 91_000, 100, 50_000]), np.array([90_500, 92_000, 200, 50_100]))
    assert asked == [(90_000, 2_000), (100, 100), (50_000, 100)]
    file.close()


def test_a_record_is_read_once_though_its_value_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema.of(SCHEMAS["one label"])
    packed = pack_samples(tmp_path, schema, samples_of(schema), num_shards=1, name="tfrecord")
    sizes: list[list[int]] = []
    read_ranges = random_access.read_ranges

    def counted(files: object, which: object, offsets: Numbers, lengths: Numbers, *options: Any) -> object:
        sizes.append(lengths.tolist())
        return read_ranges(files, which, offsets, lengths, *options)

    monkeypatch.setattr(ranges, "read_ranges", counted)
    shard, chosen = ShardReader(packed, packed.shards[0]), np.arange(0, COUNT, 3)
    first, again = shard.read_columns(chosen)["image"], shard.read_columns(chosen)["image"]
    assert first == again
    assert [size for some in sizes[1:] for size in some] == list(map(len, again))
    # The whole record, then the value alone.
    assert all(record > len(value) for record, value in zip(sizes[0], again, strict=True))
    shard.close()
