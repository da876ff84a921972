"""Rows of Parquet files and of saved data sets, packed; the suite of every source is in `tests/conformance`."""

from __future__ import annotations

import json
import os
from contextlib import suppress

import numpy as np
import pytest

import dlio
from dlio.cli import main
from dlio.errors import DlioError, SchemaError, SourceError, UsageError
from dlio.io.random_access import RandomAccessFile
from dlio.sources import open_source
from tests.helpers.arrow import JPEGS, TYPES, fields, hugging_face, pa, pq, table, write_new, write_old, write_saved
from tests.helpers.packing import samples, stop_after
from tests.pack.index.test_parquet import plain

NAME = "train-00000-of-00001.parquet"


@pytest.mark.parametrize("kind", ["old", "new", "saved"])
def test_every_layout_gives_the_same_rows(tmp_path, kind):
    write = {"old": write_old, "new": write_new, "saved": write_saved}[kind]
    path = write(tmp_path / NAME, table(0, 9))
    dlio.pack(open_source(path), tmp_path / "out", engine="serial", num_shards=2)
    found = samples(tmp_path / "out")
    assert [key for key, _ in found] == [f"{number}.jpg" for number in range(9)]
    assert [plain(row) for _, row in found] == [fields(number) for number in range(9)]
    header = json.loads((tmp_path / "out" / "manifest.jsonl").read_text().splitlines()[0])
    assert (header["schema"], header["class_names"]) == (TYPES, ["cat", "dog", "owl"])


def test_images_in_lists_and_chosen_columns(tmp_path):
    rows = table(0, 4, ("label",))
    media = [[{"bytes": JPEGS[n], "path": None}] * n for n in range(4)]
    kind = pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    write_old(tmp_path / NAME, rows.append_column("views", pa.array(media, kind)))
    source = open_source(tmp_path / NAME, columns="views")
    listing = source.listing()
    assert listing.schema.types() == {"views": "bytes[]"}
    with source.reader(listing) as read:
        assert [read(row).fields["views"] for row in range(4)] == [[JPEGS[n]] * n for n in range(4)]


def test_a_row_with_nulls_is_skipped_on_request(tmp_path):
    rows = table(0, 4, ("image", "label"))
    write_old(tmp_path / NAME, rows.set_column(1, "label", pa.array([0, None, 2, 0], pa.int64())))
    words = ["pack", str(tmp_path / NAME), str(tmp_path / "out"), "--engine", "serial", "--quiet"]
    assert main(words) == 3
    assert main([*words, "--on-error", "skip"]) == 1
    assert [key for key, _ in samples(tmp_path / "out")] == ["0.jpg", "2.jpg", "3.jpg"]


def test_an_interrupted_pack_is_resumed(tmp_path):
    write_old(tmp_path / NAME, table(0, 9))
    with pytest.raises(KeyboardInterrupt):
        dlio.pack(open_source(tmp_path / NAME), tmp_path / "out", engine="serial", num_shards=3, report=stop_after(1))
    dlio.pack(open_source(tmp_path / NAME), tmp_path / "out", engine="serial", num_shards=3)
    found = samples(tmp_path / "out")
    assert [row["image"] for _, row in found] == JPEGS


def test_several_sets_in_a_folder_ask_for_one(tmp_path):
    for name in ("cats-00000-of-00001", "dogs-00000-of-00001"):
        write_old(tmp_path / f"{name}.parquet", table(0, 3))
    with pytest.raises(UsageError, match="--option match="):
        open_source(tmp_path).listing()
    assert len(open_source(tmp_path, match="dogs-*").listing()) == 3


def test_files_of_different_columns_are_refused(tmp_path):
    write_old(tmp_path / "train-00000-of-00002.parquet", table(0, 3))
    write_old(tmp_path / "train-00001-of-00002.parquet", table(3, 6, ("image",)))
    with pytest.raises(SourceError, match="train-00001-of-00002"):
        open_source(tmp_path).listing()


def test_a_type_that_is_not_read_is_named_with_the_way_out(tmp_path):
    write_old(tmp_path / NAME, table(0, 3).append_column("when", pa.array([0, 1, 2], pa.timestamp("s"))))
    with pytest.raises(SchemaError, match=r"'when' is timestamp.*columns="):
        open_source(tmp_path / NAME).listing()


def test_images_in_a_dictionary_are_read_few_at_a_time(tmp_path):
    """One image of 1 MB that 200 rows repeat would be 200 MB."""
    image = JPEGS[0] + bytes(1 << 20)
    media = pa.array([{"bytes": image, "path": None}] * 200, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"image": media}), tmp_path / NAME, dictionary_pagesize_limit=8 << 20)
    source, before = open_source(tmp_path / NAME), pa.total_allocated_bytes()
    with source.reader(source.listing()) as read:
        assert read(199).fields["image"] == image
        assert pa.total_allocated_bytes() - before < 64 << 20


@pytest.mark.parametrize("text", ["[]", '{"_data_files": [{"filename": "../x.arrow"}]}', '{"_data_files": 1}', "{"])
def test_a_damaged_state_of_a_saved_data_set_is_named(tmp_path, text):
    write_saved(tmp_path / "in", table(0, 3))
    (tmp_path / "in" / "state.json").write_text(text)
    with pytest.raises(SourceError, match=r"state\.json"):
        open_source(tmp_path / "in").listing()


def test_a_saved_data_set_cut_short_is_named(tmp_path):
    path = write_saved(tmp_path / "in", table(0, 6)) / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(DlioError, match=r"data-00000-of-00001\.arrow"):
        open_source(tmp_path / "in").listing()


def test_listing_a_saved_data_set_reads_names_and_not_images(tmp_path, monkeypatch):
    """A file that shrinks while it is read is an error, since nothing is mapped."""
    media = [{"bytes": bytes(100_000), "path": f"{n}.jpg" if n % 3 else None} for n in range(50)] + [None]
    rows = pa.table({"image": pa.array(media, pa.struct({"bytes": pa.binary(), "path": pa.string()}))})
    path, taken = write_saved(tmp_path / "in", rows) / "data-00000-of-00001.arrow", []
    read = RandomAccessFile.read
    monkeypatch.setattr(RandomAccessFile, "read", lambda file, at, size: (taken.append(size), read(file, at, size))[1])
    assert list(open_source(tmp_path / "in").listing().keys)[:4] == [
        f"{path.name}/000000",
        "1.jpg",
        "2.jpg",
        f"{path.name}/000003",
    ]
    assert sum(taken) < 20_000 < path.stat().st_size
    monkeypatch.setattr(
        RandomAccessFile, "read", lambda file, at, size: (os.truncate(path, 3000), read(file, at, size))[1]
    )
    with pytest.raises(DlioError, match=r"data-00000-of-00001\.arrow"):
        open_source(tmp_path / "in").listing()


def test_folders_of_the_datasets_library_are_packed(tmp_path):
    datasets = hugging_face()
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    media = [{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(JPEGS)]
    rows = datasets.Dataset.from_dict({"img": media, "label": [n % 2 for n in range(9)]}, features=features)
    rows.save_to_disk(tmp_path / "saved", num_shards=2)
    rows.to_parquet(tmp_path / NAME)
    for number, path in enumerate([tmp_path / "saved", tmp_path / NAME]):
        dlio.pack(open_source(path), tmp_path / f"out{number}", engine="serial")
        found = samples(tmp_path / f"out{number}")
        assert found == [(f"{n}.jpg", {"image": JPEGS[n], "label": n % 2}) for n in range(9)]
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "splits")
    with pytest.raises(UsageError, match="several splits"):
        open_source(tmp_path / "splits").listing()


def test_a_repository_of_the_hub_is_packed_by_its_splits(tmp_path):
    (tmp_path / "hf" / "data").mkdir(parents=True)
    (tmp_path / "hf" / "README.md").write_text("# A data set")
    for name, rows in {
        "train-00000-of-00002": (0, 3),
        "train-00001-of-00002": (3, 5),
        "test-00000-of-00001": (5, 9),
    }.items():
        write_old(tmp_path / "hf" / "data" / f"{name}.parquet", table(*rows, ("image", "label")))
    assert open_source(tmp_path / "hf").name == "parquet"
    with pytest.raises(UsageError, match=r"holds the splits test, train: give one with --option split="):
        open_source(tmp_path / "hf").listing()
    with pytest.raises(UsageError, match=r"no split 'val', only test, train"):
        open_source(tmp_path / "hf", split="val").listing()
    dlio.pack(open_source(tmp_path / "hf", split="train"), tmp_path / "out", engine="serial")
    assert [fields["image"] for _, fields in samples(tmp_path / "out")] == JPEGS[:5]


def test_splits_that_were_saved_together_are_chosen(tmp_path):
    write_saved(tmp_path / "saved" / "train", table(0, 3))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UsageError, match=r"several splits: give one, such as --option split=train"):
        open_source(tmp_path / "saved").listing()
    assert len(open_source(tmp_path / "saved", split="train").listing()) == 3


@pytest.mark.parametrize(
    "column", [[[1.0, None]], [[1, None]], [[True, None]], [[[1.0], [None]]]], ids=["floats", "ints", "bools", "deep"]
)
def test_a_null_within_a_list_is_named(tmp_path, column):
    write_old(tmp_path / NAME, table(0, 1, ("image",)).append_column("values", pa.array(column)))
    source = open_source(tmp_path / NAME)
    with source.reader(source.listing()) as read, pytest.raises(SourceError, match="the list has a null"):
        read(0)


def test_metadata_of_another_form_is_ignored(tmp_path):
    rows = table(0, 2).replace_schema_metadata({"huggingface": '{"info": {"features": ["x"]}}'})
    write_old(tmp_path / NAME, rows)
    assert open_source(tmp_path / NAME).listing().image_fields == ("image", "depth")


def test_a_name_of_many_parts_is_refused_at_once(tmp_path):
    write_old(tmp_path / "train-00000-of-99999999999.parquet", table(0, 1))
    with pytest.raises(SourceError, match="without 1, 2, 3"):
        open_source(tmp_path).listing()


@pytest.mark.parametrize("write", [write_old, write_saved])
def test_rows_are_packed_in_order_only(tmp_path, write):
    """Each row of another place would read a whole group again."""
    source = open_source(write(tmp_path / NAME, table(0, 3)))
    with pytest.raises(UsageError, match="the loaders shuffle"):
        dlio.pack(source, tmp_path / "out", engine="serial", shuffle=1)
    assert not (tmp_path / "out").exists()


def test_compressed_rows_of_a_saved_data_set_are_refused(tmp_path):
    path = write_saved(tmp_path / "in", table(0, 3)) / "data-00000-of-00001.arrow"
    with pa.OSFile(str(path), "wb") as file:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(file, table(0, 3).schema, options=options) as writer:
            writer.write_table(table(0, 3))
    with pytest.raises(SourceError, match="its rows are compressed"):
        open_source(tmp_path / "in").listing()


def test_rows_that_the_pages_do_not_have_are_not_listed(tmp_path):
    pq.write_table(pa.table({"label": np.zeros(200_003, "int64")}), tmp_path / NAME)
    assert len(open_source(tmp_path / NAME).listing()) == 200_003
    data = (tmp_path / NAME).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    told, lied = (bytes([n & 127 | 128, n >> 7 & 127 | 128, n >> 14]) for n in (2 * 200_003, 2 * 1_000_003))
    (tmp_path / NAME).write_bytes(data[:footer] + data[footer:].replace(told, lied))
    with pytest.raises(DlioError, match="its pages have 200003 values, the footer says 1000003"):
        open_source(tmp_path / NAME).listing()


def test_a_saved_data_set_of_hostile_lengths_or_names_is_an_error(tmp_path):
    path = write_saved(tmp_path / "in", table(0, 6)) / "data-00000-of-00001.arrow"
    data, length = path.read_bytes(), (6).to_bytes(8, "little")
    places = [at for at in range(0, len(data), 8) if data[at : at + 8] == length]
    assert len(places) > 3  # of the batch and of its columns
    for at in places:
        path.write_bytes(data[:at] + (-(2**56)).to_bytes(8, "little", signed=True) + data[at + 8 :])
        with suppress(DlioError):  # pyarrow must not end the process
            open_source(tmp_path / "in").listing()
    path.write_bytes(data.replace(b"label", b"\xfflabe"))
    with pytest.raises(DlioError, match="invalid start byte"):
        open_source(tmp_path / "in").listing()


def test_a_file_of_a_saved_data_set_asks_for_its_folder(tmp_path):
    write_saved(tmp_path / "in", table(0, 3))
    file = next((tmp_path / "in").glob("*.arrow"))
    with pytest.raises(SourceError, match=r"give the folder that Dataset\.save_to_disk has written"):
        open_source(file, name="arrow").listing()
