"""HDF5 against h5py, which reads what is written and writes what users write."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest

from dlio import formats
from dlio.errors import CorruptRecordError, SchemaError, StorageError
from dlio.formats import hdf5
from dlio.sample import IMAGE_CLASSIFICATION, Sample, Schema

WIDE = Schema.of(
    {
        "image": "bytes",
        "text": "str",
        "label": "float32[3]",
        "flag": "bool",
        "half": "float16[2,2]",
        "count": "uint64",
        "frames": "bytes[]",
        "words": "str[2]",
    }
)


def images(count: int, num_bytes: int = 3000) -> list[Sample]:
    generator = random.Random(count)
    return [
        Sample(f"cat/{i} é.jpg", {"image": generator.randbytes(generator.randint(0, num_bytes)), "label": i - 3})
        for i in range(count)
    ]


def wide(number: int) -> Sample:
    return Sample(
        f"key {number}",
        {
            "image": b"x" * number,
            "text": "é" * (number % 5),
            "label": np.array([number, 0.5, -1], dtype="float32"),
            "flag": number % 2 == 0,
            "half": np.full((2, 2), number, dtype="float16"),
            "count": 2**64 - 1 - number,
            "frames": [b"%d" % i for i in range(number % 4)],
            "words": ["a" * number, ""],
        },
    )


def write(stem: Path, samples: list[Sample], schema: Schema = IMAGE_CLASSIFICATION) -> Path:
    writer = hdf5.Writer(stem, schema)
    for sample in samples:
        writer.write(sample)
    writer.close()
    return stem.with_name(stem.name + hdf5.SUFFIX)


def read(path: Path, schema: Schema = IMAGE_CLASSIFICATION) -> list[Sample]:
    reader = hdf5.Reader(path, schema)
    try:
        return [reader.read(index) for index in range(len(reader))]
    finally:
        reader.close()


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


def test_a_full_disk_is_a_storage_error(tmp_path):
    script = """
import pathlib, resource, sys
from dlio.errors import StorageError
from dlio.formats import hdf5
from dlio.sample import IMAGE_CLASSIFICATION, Sample
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
writer = hdf5.Writer(pathlib.Path(sys.argv[1]) / "a", IMAGE_CLASSIFICATION)
try:
    for i in range(1000):
        writer.write(Sample(str(i), {"image": bytes(20000), "label": i}))
except StorageError as error:
    assert error.errno == 27 and "a.h5: File too large" in str(error), error
    try:
        writer.close()
    except StorageError:
        writer.close()
        sys.exit(42)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 42, done.stderr


def test_files_are_opened_without_locks_unless_the_user_wants_them():
    script = "import os; from dlio.formats import _hdf5_rows as r; r.h5py(); print(os.environ['HDF5_USE_FILE_LOCKING'])"
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


def change(path: Path, name: str, row: int, value: int) -> int:
    """Overwrites a number, and returns where in the file it lies."""
    with h5py.File(path, "r+") as file:
        file[name][row] = value
        return file[name].id.get_chunk_info_by_coord((0,)).byte_offset + 8 * row


@pytest.mark.parametrize(
    ("row", "value", "record"), [(0, 1, 0), (7, -1, 6), (7, 2**62, 6), (7, 0, 6), (20, 1 << 20, 19), (20, 0, 19)]
)
def test_offsets_that_do_not_rise_to_the_end_name_record_and_place(tmp_path, row, value, record):
    path = write(tmp_path / "a", images(20))
    place = change(path, "image_offsets", row, value)
    with pytest.raises(CorruptRecordError, match=r"image_offsets says .*expected numbers that rise") as raised:
        hdf5.Reader(path, IMAGE_CLASSIFICATION)
    assert (raised.value.path, raised.value.record, raised.value.offset) == (str(path), record, place)


def test_lists_beyond_the_items_are_named(tmp_path):
    path = write(tmp_path / "a", [wide(i) for i in range(20)], WIDE)
    change(path, "frames_lists", 5, 10_000)
    with pytest.raises(CorruptRecordError, match=r"record 4, .*frames_lists says 10000"):
        hdf5.Reader(path, WIDE)


def test_text_that_is_no_utf8_names_the_record(tmp_path):
    schema = Schema.of({"text": "str"})
    path = write(tmp_path / "a", [Sample(str(i), {"text": "abc"}) for i in range(4)], schema)
    with h5py.File(path, "r+") as file:
        file["text"][6] = 0xFF
    reader = hdf5.Reader(path, schema)
    assert reader.read(1).fields["text"] == "abc"
    with pytest.raises(CorruptRecordError, match=r"record 2, offset [0-9]+: .*utf-8"):
        reader.read(2)
    reader.close()


def own(file: h5py.File) -> None:
    file["image"], file["image_offsets"] = np.zeros(5, "uint8"), [0, 5]
    file["label"] = [1]


def without(name):
    def make(file: h5py.File) -> None:
        own(file)
        del file[name]

    return make


def instead(name, make_value):
    def make(file: h5py.File) -> None:
        without(name)(file)
        make_value(file, name)

    return make


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (without("image"), r"no dataset 'image' of its own, only \['image_offsets', 'label'\]"),
        (without("image_offsets"), "no dataset 'image_offsets'"),
        (instead("label", lambda file, name: file.create_group(name)), "'label' is no dataset"),
        (instead("label", lambda file, name: file.__setitem__(name, [1, 2])), "different numbers of records"),
        (instead("label", lambda file, name: file.__setitem__(name, 1)), "not rows of numbers"),
        (instead("label", lambda file, name: file.__setitem__(name, ["1"])), "not rows of numbers"),
        (instead("image", lambda file, name: file.__setitem__(name, np.zeros(5))), "no sequence of uint8"),
        (instead("image_offsets", lambda file, name: file.__setitem__(name, [0.0, 5.0])), "holds no offsets"),
        (instead("label", lambda file, name: file.__setitem__(name, h5py.SoftLink("/image_offsets"))), "of its own"),
        (instead("label", lambda file, name: file.__setitem__(name, h5py.ExternalLink("b.h5", "/x"))), "of its own"),
        (
            instead("label", lambda file, name: file.create_dataset(name, (1,), "i8", external=[("b.bin", 0, 8)])),
            "'label' is no dataset whose data are in this file",
        ),
        (
            instead("label", lambda file, name: file.create_dataset(name, (2**50,), "i8", chunks=(8,))),
            "claims 9007199254740992 bytes",
        ),
        (lambda file: (own(file), file.attrs.__setitem__("dlio_version", 2)), "version 2, expected 1"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_files_that_do_not_fit_are_named(tmp_path, make, problem):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        make(file)
    with pytest.raises(CorruptRecordError, match=problem) as raised:
        hdf5.Reader(tmp_path / "own.h5", IMAGE_CLASSIFICATION)
    assert raised.value.path == str(tmp_path / "own.h5")


def test_a_label_of_another_shape_names_the_record(tmp_path):
    path = write(tmp_path / "a", [wide(0)], WIDE)
    reader = hdf5.Reader(path, Schema.of({"label": "float32[2]"}))
    with pytest.raises(CorruptRecordError, match=r"record 0, offset [0-9]+: expected float32\[2\]"):
        reader.read(0)
    reader.close()


def test_a_missing_file_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"cannot open .*a\.h5"):
        hdf5.Reader(tmp_path / "a.h5", IMAGE_CLASSIFICATION)


def test_a_file_of_another_format_is_named(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"no HDF5" * 1000)
    with pytest.raises(CorruptRecordError, match=r"a\.h5: HDF5 cannot read it"):
        hdf5.Reader(tmp_path / "a.h5", IMAGE_CLASSIFICATION)


def test_a_file_cut_short_is_refused_at_once(tmp_path):
    data = write(tmp_path / "a", images(300)).read_bytes()
    cut = tmp_path / "cut.h5"
    for size in [0, 1, 8, 100, 1000, len(data) // 2, len(data) - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(CorruptRecordError, match=r"cut\.h5: HDF5 cannot read it"):
            hdf5.Reader(cut, IMAGE_CLASSIFICATION)


def test_flipped_bits_in_hdf5s_own_structures_give_an_error_or_the_samples(tmp_path):
    """In a process of its own, which a crash of libhdf5 would end; every byte was tried once, this tries some."""
    path = write(tmp_path / "a", images(20))
    structures = np.ones(path.stat().st_size, dtype=bool)
    with h5py.File(path) as file:
        for dataset in file.values():
            for chunk in range(dataset.id.get_num_chunks()):
                info = dataset.id.get_chunk_info(chunk)
                structures[info.byte_offset : info.byte_offset + info.size] = False
    positions = random.Random(1).sample(np.flatnonzero(structures).tolist(), 300)
    script = """
import json, pathlib, sys
from dlio.errors import CorruptRecordError
from dlio.formats import hdf5
from dlio.sample import IMAGE_CLASSIFICATION
path, damaged = map(pathlib.Path, sys.argv[1:])
def read(path):
    reader = hdf5.Reader(path, IMAGE_CLASSIFICATION)
    try:
        return [reader.read(index) for index in range(len(reader))]
    finally:
        reader.close()
whole, data, refused = read(path), path.read_bytes(), 0
for position in json.load(sys.stdin):
    flipped = bytearray(data)
    flipped[position] ^= 1 << position % 8
    damaged.write_bytes(flipped)
    try:
        assert read(damaged) == whole, position
    except CorruptRecordError:
        refused += 1
print(refused)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(tmp_path / "damaged.h5")],
        input=json.dumps(positions),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200
