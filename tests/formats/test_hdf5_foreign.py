"""HDF5 as users write it with h5py."""

from __future__ import annotations

from contextlib import closing

import h5py
import numpy as np
import pytest

from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError
from dlio.formats import hdf5
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


@pytest.mark.parametrize(
    "layout", [{}, {"maxshape": (None,)}, {"chunks": (3,)}, {"chunks": (3,), "compression": "gzip"}]
)
def test_a_heap_that_would_be_read_for_ever_is_refused(tmp_path, layout):
    """Python's lock would be held during the read, so nothing could end it."""
    samples = images(7)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        column = file.create_dataset("image", (7,), dtype=h5py.vlen_dtype(np.uint8), **layout)
        for i, sample in enumerate(samples):
            column[i] = np.frombuffer(sample.fields["image"], dtype="uint8")
    schema = Schema.of({"image": "bytes"})
    assert [sample.fields["image"] for sample in read(tmp_path / "own.h5", schema)] == [
        sample.fields["image"] for sample in samples
    ]
    if "compression" in layout:
        return  # only HDF5 knows where its rows are
    data = bytearray((tmp_path / "own.h5").read_bytes())
    free = _free_space(data)
    data[free : free + 16] = bytes(16)
    (tmp_path / "own.h5").write_bytes(data)
    problem = rf"own\.h5, record 0, offset {free}: .*heap.*: restore the file"
    with closing(hdf5.Reader(tmp_path / "own.h5", schema)) as reader, pytest.raises(CorruptRecordError, match=problem):
        reader.read(0)


def _free_space(data: bytes) -> int:
    """Returns where the free space of the first heap begins."""
    at = data.index(b"GCOL") + 16
    while int.from_bytes(data[at : at + 2], "little"):
        at += 16 + -(-int.from_bytes(data[at + 8 : at + 16], "little") // 8) * 8
    return at
