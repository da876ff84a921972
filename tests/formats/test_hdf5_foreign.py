"""HDF5 as users write it with h5py."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from dlio.formats import hdf5
from dlio.sample import Schema
from tests.formats.hdf5_shards import images, read


def test_reads_arrays_of_varying_length_as_users_write_them(tmp_path):
    samples = images(20)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        column = file.create_dataset("image", (20,), dtype=h5py.vlen_dtype(np.uint8))
        for i, sample in enumerate(samples):
            column[i] = np.frombuffer(sample.fields["image"], dtype="uint8")
        file["label"] = [sample.fields["label"] for sample in samples]
    found = read(tmp_path / "own.h5")
    assert [sample.fields for sample in found] == [sample.fields for sample in samples]
    assert [sample.key for sample in found] == [str(i) for i in range(20)]
    reader = hdf5.Reader(tmp_path / "own.h5", Schema.of({"image": "bytes"}))
    assert reader.locate(3) == (tmp_path / "own.h5", None)
    reader.close()


def test_reads_strings_as_users_write_them(tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["varying"] = ["é", "", "abc"]
        file["fixed"] = np.array([b"x", b"", b"yz"])
    found = read(tmp_path / "own.h5", Schema.of({"varying": "str", "fixed": "bytes"}))
    assert [sample.fields["varying"] for sample in found] == ["é", "", "abc"]
    assert [sample.fields["fixed"] for sample in found] == [b"x", b"", b"yz"]


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"chunks": (3, 4, 5)},
        {"chunks": (3, 2, 5)},
        {"chunks": (3, 4, 5), "compression": "gzip"},
        {"chunks": (3, 4, 5), "fletcher32": True},
        {"dtype": ">f4"},
    ],
)
@pytest.mark.parametrize("file_options", [{}, {"userblock_size": 512}, {"libver": "latest"}])
def test_reads_plain_arrays_in_any_layout(tmp_path, layout, file_options):
    data = np.random.default_rng(1).random((10, 4, 5), dtype="float32")
    with h5py.File(tmp_path / "own.h5", "w", **file_options) as file:
        file.create_dataset("data", data=data, **layout)
        file["label"] = np.arange(10, dtype="float32")[:, None]
    schema = Schema.of({"data": "float32[4,5]", "label": "float32[1]"})
    found = read(tmp_path / "own.h5", schema)
    np.testing.assert_array_equal([sample.fields["data"] for sample in found], data, strict=True)
    assert [sample.fields["label"].tolist() for sample in found] == [[float(i)] for i in range(10)]


def test_chunks_that_were_never_written_hold_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file.create_dataset("label", (100,), dtype="int64", chunks=(10,), fillvalue=7)[55] = 1
    found = read(tmp_path / "own.h5", Schema.of({"label": "int64"}))
    assert [sample.fields["label"] for sample in found] == [7] * 55 + [1] + [7] * 44
