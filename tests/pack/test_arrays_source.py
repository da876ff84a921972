"""Arrays of NumPy as a source: which arrays become which fields, and what is refused."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

import dlio
from dlio.errors import DlioError, SourceError, UsageError
from dlio.sources import npz, open_source
from tests.helpers.packing import read_all, samples

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 5), "uint8")
LABELS = np.arange(6, dtype=">i2")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_named_after_splits_are_taken_by_split(save, tmp_path):
    save(tmp_path / "mnist.npz", x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:2], y_test=LABELS[:2])
    with pytest.raises(UsageError, match=r"different numbers of rows \(x_train 6, .*split="):
        open_source(tmp_path / "mnist.npz").listing()
    dlio.pack(npz(tmp_path / "mnist.npz", split="train"), tmp_path / "out", num_shards=2, workers=2, label_offset=0)
    found = samples(tmp_path / "out")
    assert [key for key, _ in found][:2] == ["mnist/000000", "mnist/000001"]
    assert all((each["image"] == PIXELS[n]).all() and each["label"] == n for n, (_, each) in enumerate(found))


def test_files_in_a_folder_are_fields(tmp_path):
    np.save(tmp_path / "images.npy", PIXELS)
    np.save(tmp_path / "score.npy", LABELS)
    source = open_source(tmp_path)
    assert source.name == "npz" and source.listing().schema.types() == {"image": "uint8[4,5]", "score": "int16"}
    assert [fields["score"] for fields in read_all(source)] == list(range(6))
    one = open_source(tmp_path / "images.npy")
    assert one.listing().schema.types() == {"image": "uint8[4,5]"}
    assert open_source(tmp_path, columns="score").listing().schema.types() == {"score": "int16"}


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.array(["a"]), "does not hold numbers"),
        (np.array([{}], object), "does not hold numbers"),
        (np.asfortranarray(np.zeros((3, 4))), "ascontiguousarray"),
        (np.array(3), "its rows are not contiguous"),
        (np.zeros((2, 2), ">c8"), "does not hold numbers"),
        (np.zeros((0, 2)), "have no rows"),
        (np.zeros((5, 0)), "rows have no values"),
    ],
)
def test_what_has_no_rows_of_numbers_is_named(array, problem, tmp_path):
    np.savez(tmp_path / "x.npz", x=array)
    with pytest.raises(SourceError, match=problem) as raised:
        open_source(tmp_path / "x.npz").listing()
    assert "x.npz" in str(raised.value)


def test_more_rows_than_a_file_can_mean_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 24) + 1, "bool"))
    with pytest.raises(SourceError, match="16777217 rows, expected 1 to 16,777,216"):
        open_source(tmp_path / "x.npz").listing()


def test_a_directory_larger_than_a_sample_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("DLIO_MAX_SAMPLE", "128KiB")
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 1 << 18, 0, 0)
    (tmp_path / "x.npz").write_bytes(bytes(1 << 18) + end)
    with pytest.raises(SourceError, match=r"a header or directory of more than 131,072 bytes"):
        npz(tmp_path / "x.npz").listing()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damage_is_an_error_that_names_the_file(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array(file, PIXELS)
    whole = (tmp_path / "x.npz").read_bytes()
    for cut in (10, 60, len(whole) - 30):
        (tmp_path / "x.npz").write_bytes(whole[:cut])
        with pytest.raises(DlioError, match=r"x\.npz"):
            open_source(tmp_path / "x.npz").listing()
    middle = len(whole) // 2
    (tmp_path / "x.npz").write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])
    with pytest.raises(DlioError, match=r"x\.npz"):
        open_source(tmp_path / "x.npz").listing()
    with pytest.raises(UsageError, match="no array 'y', only x"):
        (tmp_path / "x.npz").write_bytes(whole)
        open_source(tmp_path / "x.npz", columns="y").listing()


def test_a_compressed_array_is_in_memory_once(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((16, 1024, 1024), np.uint8))
    source = npz(tmp_path / "x.npz")
    tracemalloc.start()
    try:
        source.listing()
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
