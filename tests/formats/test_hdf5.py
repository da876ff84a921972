"""HDF5 against h5py, which reads what is written."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from itertools import pairwise

import h5py
import numpy as np
import pytest

from dlio import formats
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SchemaError
from dlio.formats import hdf5
from tests.formats.hdf5_shards import WIDE, images, read, wide, write


def assert_equal(found: list[Sample], expected: list[Sample]) -> None:
    assert [sample.key for sample in found] == [sample.key for sample in expected]
    for one, other in zip(found, expected, strict=True):
        for name, value in other.fields.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(one.fields[name], value, strict=True)
            else:
                assert (one.fields[name], type(one.fields[name])) == (value, type(value))


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_every_kind_of_field_comes_back(tmp_path, count):
    samples = [wide(i) for i in range(count)]
    assert_equal(read(write(tmp_path / "a", samples, WIDE), WIDE), samples)


@pytest.mark.parametrize(("count", "num_bytes"), [(9000, 20), (4, 5 << 20), (40, 400_000)])
def test_values_across_chunks_come_back(tmp_path, count, num_bytes):
    samples = images(count, num_bytes)
    assert read(write(tmp_path / "a", samples)) == samples


@pytest.mark.parametrize("shape", ["1", "300,1000", "3,700,700"])
def test_arrays_smaller_and_larger_than_a_chunk_come_back(tmp_path, shape):
    schema = Schema.of({"pixels": f"uint8[{shape}]"})
    generator = np.random.default_rng(0)
    dims = [int(dim) for dim in shape.split(",")]
    samples = [Sample(str(i), {"pixels": generator.integers(0, 256, dims, dtype="uint8")}) for i in range(5)]
    found = read(write(tmp_path / "a", samples, schema), schema)
    assert_equal(found, samples)
    assert found[0].fields["pixels"].flags.writeable


def test_h5py_reads_the_layout_of_the_docstring(tmp_path):
    samples = [wide(i) for i in range(50)]
    with h5py.File(write(tmp_path / "a", samples, WIDE)) as file:
        assert json.loads(file.attrs["dlio_schema"].decode()) == WIDE.types()
        assert file.attrs["dlio_version"] == 1
        np.testing.assert_array_equal(file["label"][:], [sample.fields["label"] for sample in samples])
        np.testing.assert_array_equal(file["flag"][:], [sample.fields["flag"] for sample in samples], strict=True)
        for name in ("image", "text", "__key__"):
            offsets = file[f"{name}_offsets"][:]
            values = [file[name][start:stop].tobytes() for start, stop in pairwise(offsets)]
            expected = [sample.fields.get(name, sample.key) for sample in samples]
            assert values == [value.encode() if isinstance(value, str) else value for value in expected]
        lists, offsets = file["frames_lists"][:], file["frames_offsets"][:]
        items = [file["frames"][offsets[i] : offsets[i + 1]].tobytes() for i in range(lists[7], lists[8])]
        assert items == samples[7].fields["frames"] == [b"0", b"1", b"2"]


def test_caffe_finds_data_and_label(tmp_path):
    schema = Schema.of({"data": "float32[3,2,2]", "label": "int64"})
    samples = [Sample(str(i), {"data": np.full((3, 2, 2), i, dtype="float32"), "label": i}) for i in range(10)]
    with h5py.File(write(tmp_path / "a", samples, schema)) as file:
        assert (file["data"].shape, file["data"].dtype) == ((10, 3, 2, 2), "float32")
        assert (file["label"].shape, file["label"].dtype) == ((10,), "int64")
        assert file["label"][:].tolist() == list(range(10))


def test_equal_samples_give_equal_bytes_without_times(tmp_path):
    first, second = (write(tmp_path / name, images(300)).read_bytes() for name in "ab")
    assert first == second
    headers = first.split(b"OHDR\x02")[1:]
    assert len(headers) >= 6
    assert not any(header[0] & 0x20 for header in headers), "an object's header holds times"


def test_a_shard_is_little_larger_than_its_samples(tmp_path):
    samples = images(200, num_bytes=100_000)
    num_bytes = sum(len(sample.fields["image"]) for sample in samples)
    assert write(tmp_path / "a", samples).stat().st_size < num_bytes + (1 << 20) + 4 * (64 << 10) + 10_000


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({"image": "uint8[?,?,3]", "label": "int64"}, r"'image' is uint8\[\?,\?,3\]"),
        ({"boxes": "float32[]"}, "'boxes'"),
        ({"empty": "float32[0]"}, "'empty'.* 0 bytes"),
        ({"volume": "float64[1024,1024,1024]"}, "'volume'.* 8589934592 bytes"),
        ({"image": "bytes", "image_offsets": "int64"}, "'image' needs a dataset"),
        ({"__key__": "int64"}, "'__key__' needs a dataset"),
    ],
)
def test_what_rows_cannot_hold_is_refused(types, reason):
    with pytest.raises(SchemaError, match=f"hdf5 cannot hold.*{reason}.*formats that can: .*lmdb.*tfrecord"):
        formats.require("hdf5", Schema.of(types))


def test_an_existing_file_is_not_written_over(tmp_path):
    path = write(tmp_path / "a", images(2))
    with pytest.raises(FileExistsError):
        hdf5.Writer(tmp_path / "a", IMAGE_CLASSIFICATION)
    assert len(read(path)) == 2


def test_files_are_opened_without_locks_unless_the_user_wants_them():
    script = (
        "import os; from dlio.formats.layouts import hdf5_rows; hdf5_rows.load_h5py(); "
        "print(os.environ['HDF5_USE_FILE_LOCKING'])"
    )
    for given, expected in [({}, "FALSE"), ({"HDF5_USE_FILE_LOCKING": "BEST_EFFORT"}, "BEST_EFFORT")]:
        done = subprocess.run([sys.executable, "-c", script], env=given, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == expected, done.stderr


def test_many_threads_share_a_reader(tmp_path):
    samples = images(300)
    reader = hdf5.Reader(write(tmp_path / "a", samples), IMAGE_CLASSIFICATION)
    wrong: list[int] = []
    threads = [
        threading.Thread(target=lambda: wrong.extend(i for i in range(300) if reader.read(i) != samples[i]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert wrong == []


def test_locate_tells_where_the_first_field_begins(tmp_path):
    samples = images(500, num_bytes=9000)
    path = write(tmp_path / "a", samples)
    data = path.read_bytes()
    reader = hdf5.Reader(path, IMAGE_CLASSIFICATION)
    for index, sample in enumerate(samples):
        file, offset = reader.locate(index)
        assert file == path
        assert data[offset : offset + 8] == sample.fields["image"][:8]
    reader.close()
