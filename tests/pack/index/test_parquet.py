"""Parquet files of Hugging Face, adopted in place."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats.layouts.thrift import read_struct
from dlio.formats.readonly.parquet import Reader
from dlio.pack.index import index
from dlio.sources import packed
from tests.helpers.adopted import PAIR, adopt, batch
from tests.helpers.arrow import JPEGS, TYPES, fields, hugging_face, pa, pq, table, write_new, write_old
from tests.helpers.packing import samples

NAME = "train-00000-of-00001.parquet"


def plain(found: dict) -> dict:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}


@pytest.mark.parametrize(
    "options", [{}, {"data_page_version": "2.0"}, {"data_page_size": 1000}, {"row_group_size": 100}]
)
def test_columns_become_fields_and_images_lie_where_they_were(tmp_path, options):
    write_new(tmp_path / "train-00000-of-00002.parquet", table(0, 5), **options)
    write_new(tmp_path / "train-00001-of-00002.parquet", table(5, 9), **options)
    manifest, found = adopt(tmp_path, "parquet")
    assert manifest.schema.types() == TYPES | {"label": "int64"}
    assert manifest.schema.class_names == ("cat", "dog", "owl")
    assert [key for key, _ in found] == [f"{number}.jpg" for number in range(9)]
    assert [plain(row) for _, row in found] == [fields(number) for number in range(9)]
    assert found[2][1]["objects_box"].dtype == "float32"
    assert found[0][1]["objects_box"].shape == (0, 4)


def test_images_and_labels_load_without_pyarrow_and_convert(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    write_new(tmp_path / "in" / NAME, table(0, 9))
    adopt(tmp_path / "in", "parquet", schema=Schema.of(PAIR))
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "pyarrow", None)
        assert batch(tmp_path / "in", [4, 0])["label"].tolist() == [1, 0]
    dlio.pack(packed(tmp_path / "in"), tmp_path / "out", format="webdataset", engine="serial")
    assert [row for _, row in samples(tmp_path / "out")] == [row for _, row in samples(tmp_path / "in")]


def test_paths_that_are_missing_or_repeated_become_numbers(tmp_path):
    rows = table(0, 4, ("image", "label"))
    media = [{"bytes": JPEGS[n], "path": path} for n, path in enumerate([None, "a.jpg", "a.jpg", ""])]
    rows = rows.set_column(0, "image", pa.array(media, rows.schema.field("image").type))
    write_new(tmp_path / NAME, rows)
    _, found = adopt(tmp_path, "parquet")
    assert [key for key, _ in found] == [f"{NAME}/000000", "a.jpg", f"{NAME}/000002", f"{NAME}/000003"]


@pytest.mark.parametrize("write", [write_old, lambda path, rows: write_new(path, rows, use_dictionary=True)])
def test_compressed_images_and_dictionaries_are_named_with_the_way_out(tmp_path, write):
    write(tmp_path / NAME, table(0, 4))
    with pytest.raises(SchemaError, match=r"'image' is (compressed|a dictionary).*--source parquet"):
        index(tmp_path, format="parquet")


def test_an_image_that_is_null_is_named_with_the_way_out(tmp_path):
    rows = table(0, 4, ("image",))
    media = [None, *rows.column("image").to_pylist()[1:]]
    write_new(tmp_path / NAME, rows.set_column(0, "image", pa.array(media, rows.schema.field("image").type)))
    with pytest.raises(CorruptRecordError, match=r"'image\.bytes'.*null.*--source parquet"):
        index(tmp_path, format="parquet", workers=1)


def test_a_column_that_is_not_read_is_named(tmp_path):
    write_new(tmp_path / NAME, table(0, 3).append_column("when", pa.array([0, 1, 2], pa.timestamp("s"))))
    with pytest.raises(SchemaError, match=r"'when' is timestamp.*--schema"):
        index(tmp_path, format="parquet")
    adopt(tmp_path, "parquet", schema=Schema.of(PAIR))


@pytest.mark.parametrize("line", [b"4 9\n4 9\n", b"4 999999\n90 1\n", b"8 20\n9 30\n"])
def test_images_of_an_index_that_overlap_or_lie_outside_are_refused(tmp_path, line):
    path = write_new(tmp_path / NAME, table(0, 2, ("image",)))
    (tmp_path / ".dlio-index").mkdir()
    (tmp_path / ".dlio-index" / f"{NAME}.idx").write_bytes(line)
    with pytest.raises(CorruptRecordError, match=r"\.idx: images lie beyond the file's end, or within each other"):
        Reader(path, Schema.of({"image": "bytes"}))


def test_a_column_whose_pages_unpack_to_far_more_than_the_file_is_refused(tmp_path):
    rows = table(0, 3, ("image",)).append_column("bomb", pa.array(["a" * (70 << 20)] * 3))
    write_new(tmp_path / NAME, rows, use_dictionary=["bomb"], compression={"image.bytes": "none", "bomb": "zstd"})
    with pytest.raises(CorruptRecordError, match=r"column 'bomb': a page unpacks to 734\d+ bytes"):
        index(tmp_path, format="parquet", workers=1)


def test_columns_that_unpack_to_far_more_than_the_file_together_are_refused(tmp_path):
    rows = table(0, 3, ("image",)).append_column("a", pa.array(["a" * (50 << 20)] * 3))
    rows = rows.append_column("b", pa.array(["b" * (50 << 20)] * 3))
    write_new(
        tmp_path / NAME, rows, use_dictionary=["a", "b"], compression={"image.bytes": "none", "a": "zstd", "b": "zstd"}
    )
    with pytest.raises(
        CorruptRecordError, match=r"column 'b': together with the columns before it, it unpacks to 104\d+ bytes"
    ):
        index(tmp_path, format="parquet", workers=1)


def test_files_of_the_datasets_library_are_adopted(tmp_path):
    datasets = hugging_face()
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    media = [{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(JPEGS)]
    rows = datasets.Dataset.from_dict({"img": media, "label": [n % 2 for n in range(9)]}, features=features)
    rows.to_parquet(tmp_path / NAME)
    manifest, found = adopt(tmp_path, "parquet")
    assert manifest.schema == Schema.of(PAIR, ("cat", "dog"))
    assert found == [(f"{n}.jpg", {"image": JPEGS[n], "label": n % 2}) for n in range(9)]


def test_the_index_agrees_with_what_pyarrow_reads(tmp_path):
    path = write_new(tmp_path / NAME, table(0, 9))
    expected = [row["bytes"] for row in pq.read_table(path, columns=["depth"]).column("depth").to_pylist()]
    with closing(Reader(Path(path), Schema.of({"depth": "bytes"}))) as reader:
        assert [reader.read(number).fields["depth"] for number in range(9)] == expected
        assert len(reader.index_text().splitlines()) == 9


def test_row_groups_that_share_their_pages_are_refused(tmp_path):
    rows = pa.table({"image": pa.array([b""] * 1000, pa.binary())})
    pq.write_table(rows, tmp_path / NAME, compression="none", use_dictionary=False)
    data = (tmp_path / NAME).read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    before, mark, groups = data[-8 - size : -8].partition(b"\x19\x1c")  # a list of one row group
    end = read_struct(groups)[1]
    footer = before + mark[:1] + b"\xfc\x32" + 50 * groups[:end] + groups[end:]
    (tmp_path / NAME).write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(CorruptRecordError, match="its columns overlap"):
        index(tmp_path, format="parquet")
