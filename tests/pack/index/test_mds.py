"""Folders of MosaicML Streaming."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlio
from dlio import formats
from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError, SchemaError, SourceError
from dlio.pack.index import index, mds
from dlio.sources import packed
from tests.helpers.adopted import JPEGS, PAIR, adopt, batch
from tests.helpers.packing import samples


def write_mds(path: Path, columns: dict[str, tuple[str, int | None]], rows: list[list[bytes]]) -> dict:
    """Writes an MDS shard as streaming's MDSWriter lays it out, and returns its entry of the index."""
    config = {
        "column_encodings": [encoding for encoding, _ in columns.values()],
        "column_names": list(columns),
        "column_sizes": [size for _, size in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    text = json.dumps(config, sort_keys=True).encode()
    sizes = [size for _, size in columns.values()]
    bodies = []
    for row in rows:
        head = b"".join(struct.pack("<I", len(value)) for value, size in zip(row, sizes, strict=True) if size is None)
        bodies.append(head + b"".join(row))
    offsets = np.cumsum([4 + 4 * (len(rows) + 1) + len(text), *map(len, bodies)]).astype("<u4")
    path.write_bytes(struct.pack("<I", len(rows)) + offsets.tobytes() + text + b"".join(bodies))
    raw = {"basename": path.name, "bytes": path.stat().st_size, "hashes": {}}
    return config | {"raw_data": raw, "samples": len(rows), "zip_data": None}


MDS_COLUMNS = {"class": ("int", 8), "image": ("jpeg", None), "note": ("str", None), "box": ("ndarray:int16:2,2", 8)}


class TestMDS:
    """Folders of MosaicML Streaming."""

    def write(self, root: Path, counts: list[int]) -> None:
        entries, number = [], 0
        for shard, count in enumerate(counts):
            rows = [
                [struct.pack("<q", n), JPEGS[n], f"é{n}".encode(), np.full((2, 2), n, "<i2").tobytes()]
                for n in range(number, number + count)
            ]
            entries.append(write_mds(root / f"shard.{shard:05d}.mds", MDS_COLUMNS, rows))
            number += count
        (root / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))

    def test_columns_become_fields(self, tmp_path):
        self.write(tmp_path, [2, 3])
        manifest, found = adopt(tmp_path, "mds")
        assert manifest.schema.types() == {"image": "bytes", "label": "int64", "box": "int16[2,2]", "note": "str"}
        assert [(fields["label"], fields["note"], fields["image"]) for _, fields in found] == [
            (n, f"é{n}", JPEGS[n]) for n in range(5)
        ]
        assert found[4][1]["box"].tolist() == [[4, 4], [4, 4]]
        assert [key for key, _ in found] == [
            f"shard.0000{shard}.mds/00000{n}" for shard, n in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        ]

    @pytest.mark.parametrize("name", ["a" * 300, "a\0b", "", "../shard.00000.mds"])
    def test_a_name_that_no_file_can_have_is_refused(self, tmp_path, name):
        self.write(tmp_path, [1])
        text = (tmp_path / "index.json").read_text().replace('"shard.00000.mds"', json.dumps(name))
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(SourceError, match="which does not exist"):
            index(tmp_path, format="mds")

    def test_it_trains_and_converts(self, tmp_path):
        (tmp_path / "mds").mkdir()
        self.write(tmp_path / "mds", [2, 3])
        adopt(tmp_path / "mds", "mds", schema=Schema.of(PAIR))
        assert batch(tmp_path / "mds", [4, 0])["label"].tolist() == [4, 0]
        dlio.pack(packed(tmp_path / "mds"), tmp_path / "out", format="tfrecord", engine="serial")
        assert samples(tmp_path / "out") == samples(tmp_path / "mds")
        with pytest.raises(SchemaError, match=r"dlio can only read MDS.*formats that can: .*tfrecord"):
            dlio.pack(packed(tmp_path / "out"), tmp_path / "back", format="mds", engine="serial")

    def test_a_missing_shard_of_the_index_is_named(self, tmp_path):
        self.write(tmp_path, [2, 3])
        (tmp_path / "shard.00001.mds").rename(tmp_path / "shard.00001.mds.zstd")
        with pytest.raises(SourceError, match=r"index\.json lists 'shard\.00001\.mds', which does not exist"):
            index(tmp_path, format="mds")

    def test_a_shard_cut_short_is_named(self, tmp_path):
        self.write(tmp_path, [2])
        path = tmp_path / "shard.00000.mds"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CorruptRecordError, match=r"shard\.00000\.mds"):
            index(tmp_path, format="mds")

    def test_encodings_that_are_not_read_are_named(self, tmp_path):
        write_mds(tmp_path / "shard.00000.mds", {"x": ("pkl", None)}, [[b"\x80\x04N."]])
        with pytest.raises(SchemaError, match="the column 'x' is encoded as 'pkl', which dlio does not read"):
            index(tmp_path, format="mds")

    @pytest.mark.parametrize("size", [float("inf"), float("nan"), 1e400, -8, 1.5, "8", True, [8]])
    def test_columns_of_no_size_are_refused(self, tmp_path, size):
        write_mds(tmp_path / "shard.00000.mds", {"x": ("int", size)}, [[struct.pack("<q", 1)]])
        with pytest.raises(CorruptRecordError, match=r"shard\.00000\.mds.*not that of MDS"):
            index(tmp_path, format="mds")

    @pytest.mark.parametrize(
        "shape", ["x", "-4", "2,", "2;2", "1_0", "\u0664", "2,-1", "9" * 30, " 2", "", "\ud800", ":", "2:2"]
    )
    def test_arrays_of_no_shape_are_refused(self, tmp_path, shape):
        write_mds(tmp_path / "shard.00000.mds", {"x": (f"ndarray:uint8:{shape}", 4)}, [[bytes(4)]])
        with pytest.raises(SchemaError, match="the column 'x' is encoded as 'ndarray:uint8:"):
            index(tmp_path, format="mds")
        with pytest.raises(CorruptRecordError, match=r"shard\.00000\.mds, record 0"):
            index(tmp_path, format="mds", schema=Schema.of({"x": "uint8[4]"}), workers=1)

    @pytest.mark.parametrize("dtype", ["object", "S4", "M8[s]", "i4,i4", "(2,)u2", "uint08", "float128", "\ud800"])
    def test_arrays_of_no_plain_numbers_are_refused(self, tmp_path, dtype):
        write_mds(tmp_path / "shard.00000.mds", {"x": (f"ndarray:{dtype}:4", 64)}, [[bytes(64)]])
        with pytest.raises(CorruptRecordError, match=r"shard\.00000\.mds, record 0"):
            index(tmp_path, format="mds", schema=Schema.of({"x": "uint8[4]"}), workers=1)

    @pytest.mark.parametrize("dims", [b"\x07" + b"\xff" * 8, b"\xff" * 40, b"\x04", b""])
    def test_arrays_whose_own_shape_is_damaged_are_named(self, tmp_path, dims):
        write_mds(tmp_path / "shard.00000.mds", {"x": ("ndarray:uint8", None)}, [[dims + bytes(4)]])
        with pytest.raises(CorruptRecordError, match=r"shard\.00000\.mds, record 0"):
            index(tmp_path, format="mds", schema=Schema.of({"x": "uint8[?]"}), workers=1)

    def test_arrays_that_tell_their_own_shape(self, tmp_path):
        array = np.arange(6, dtype="<u2").reshape(2, 3)
        static = bytes([2 << 2, 2, 3]) + array.tobytes()
        write_mds(
            tmp_path / "shard.00000.mds",
            {"a": ("ndarray:uint16", None), "b": ("ndarray", None), "c": ("str_int", None)},
            [[static, bytes([16]) + static, b"-7"]],
        )
        with pytest.raises(SchemaError, match=r"'a' is encoded as 'ndarray:uint16'.*--schema"):
            index(tmp_path, format="mds")
        schema = Schema.of({"a": "uint16[?,?]", "b": "uint16[2,3]", "c": "int64"})
        _, [(_, fields)] = adopt(tmp_path, "mds", schema=schema)
        np.testing.assert_array_equal(fields["a"], array)
        np.testing.assert_array_equal(fields["b"], array)
        assert fields["c"] == -7

    @given(st.data())
    def test_damage_is_named_or_does_no_harm(self, tmp_path_factory, data):
        root = tmp_path_factory.mktemp("mds")
        self.write(root, [2])
        path = root / "shard.00000.mds"
        whole = bytearray(path.read_bytes())
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
        schema = Schema.of({"image": "bytes", "label": "int64", "box": "int16[2,2]", "note": "str"})
        try:
            with closing(formats.load("mds").Reader(path, schema)) as reader:
                for number in range(len(reader)):
                    reader.read(number)
        except CorruptRecordError as error:
            assert "shard.00000.mds" in str(error)


def test_a_large_file_of_another_kind_is_told_by_its_end(tmp_path):
    (tmp_path / "list.csv").write_bytes((1 << 23).to_bytes(4, "little"))  # as text may begin
    os.truncate(tmp_path / "list.csv", 1 << 26)
    tracemalloc.start()
    try:
        assert mds.files(tmp_path / "list.csv") == ()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
