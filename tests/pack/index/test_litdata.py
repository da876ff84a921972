"""Chunks of LitData, adopted."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dlio
from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError, SchemaError, SourceError
from dlio.pack.index import index
from dlio.sources import packed
from tests.helpers.adopted import JPEGS, PAIR, adopt, batch
from tests.helpers.litdata import write_chunk
from tests.helpers.packing import samples


def rows(count: int) -> list[list[bytes]]:
    return [[JPEGS[n], n.to_bytes(8, "little"), f"é{n}".encode()] for n in range(count)]


def test_leaves_become_fields_and_load_and_convert(tmp_path):
    (tmp_path / "in").mkdir()
    write_chunk(tmp_path / "in", rows(4))
    manifest, found = adopt(tmp_path / "in", "litdata")
    assert manifest.schema.types() == {**PAIR, "name": "str"}
    assert [row for _, row in found] == [{"image": JPEGS[n], "label": n, "name": f"é{n}"} for n in range(4)]
    index(tmp_path / "in", format="litdata", schema=Schema.of(PAIR), overwrite=True, workers=1)
    assert batch(tmp_path / "in", [3, 0])["label"].tolist() == [3, 0]
    dlio.pack(packed(tmp_path / "in"), tmp_path / "out", format="tfrecord", engine="serial")
    assert samples(tmp_path / "out") == samples(tmp_path / "in")


def test_what_the_library_writes_is_read(tmp_path):
    writer_of = pytest.importorskip("litdata.streaming.writer")
    import torch

    made = writer_of.BinaryWriter(str(tmp_path), chunk_size=3)
    arrays = [np.arange(n, dtype="float32") for n in range(5)]
    for n in range(5):
        row = {"image": JPEGS[n], "label": n, "part": n / 2, "flag": n > 2, "vector": arrays[n]}
        made[n] = row | {"matrix": np.full((2, n), n, "int16"), "tensor": torch.full((n, 2), n)}
    made.done()
    made.merge(1)
    manifest, found = adopt(tmp_path, "litdata")
    types = {"flag": "bool", "matrix": "int16[?,?]", "part": "float64", "tensor": "int64[?,?]", "vector": "float32[]"}
    assert manifest.schema.types() == PAIR | types
    assert len(manifest.shards) == 2
    for n, (_, row) in enumerate(found):
        assert (row["image"], row["label"], row["part"], row["flag"]) == (JPEGS[n], n, n / 2, n > 2)
        assert np.array_equal(row["vector"], arrays[n])
        assert np.array_equal(row["matrix"], np.full((2, n), n))
        assert np.array_equal(row["tensor"], np.full((n, 2), n))


def test_a_pair_is_an_image_and_its_label(tmp_path):
    write_chunk(tmp_path, [row[:2] for row in rows(2)], {"0": "jpeg", "1": "int"})
    path = tmp_path / "index.json"
    path.write_text(path.read_text().replace("builtins.dict", "builtins.tuple"))
    assert [row for _, row in adopt(tmp_path, "litdata")[1]] == [{"image": JPEGS[n], "label": n} for n in range(2)]


@pytest.mark.parametrize("kind", ["pickle", "pil", "json", "video:mp4", "numpy:x", "no_header_tensor:7"])
def test_leaves_that_are_not_read_are_named(tmp_path, kind):
    write_chunk(tmp_path, [[b"\x80\x04N."]], {"x": kind})
    with pytest.raises(SchemaError, match=rf"'x' is of the type '{kind}', which dlio does not read"):
        index(tmp_path, format="litdata")


@pytest.mark.parametrize("option", ["compression", "encryption"])
def test_compressed_and_encrypted_chunks_are_named(tmp_path, option):
    write_chunk(tmp_path, rows(2), **{option: "zstd"})
    with pytest.raises(CorruptRecordError, match=f"{option} 'zstd'"):
        index(tmp_path, format="litdata")


@pytest.mark.parametrize("text", ["{}", "[]", '{"chunks": [{"filename": "chunk-0-0.bin"}], "config": {}}', "{" * 3000])
def test_a_damaged_index_is_named(tmp_path, text):
    write_chunk(tmp_path, rows(1))
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(CorruptRecordError, match=r"index\.json"):
        index(tmp_path, format="litdata")


def test_a_missing_index_and_a_missing_chunk_are_named(tmp_path):
    write_chunk(tmp_path, rows(1))
    (tmp_path / "chunk-0-0.bin").unlink()
    with pytest.raises(SourceError, match=r"lists 'chunk-0-0\.bin', which does not exist"):
        index(tmp_path, format="litdata")
    (tmp_path / "index.json").unlink()
    with pytest.raises(SourceError, match=r"holds no shards of litdata"):
        index(tmp_path, format="litdata")


def test_an_array_of_no_number_type_is_refused(tmp_path):
    write_chunk(tmp_path, [[bytes([99, 0, 0, 0, 0, 0, 0, 0])]], {"x": "numpy"})
    with pytest.raises(CorruptRecordError, match="not the number of a type"):
        index(tmp_path, format="litdata")
    assert json.loads((tmp_path / "index.json").read_text())["config"]["data_format"] == ["numpy"]
