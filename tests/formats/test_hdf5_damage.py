"""HDF5 files that are damaged, cut off, of another layout, or not HDF5."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import CorruptRecordError, StorageError
from dlio.formats import hdf5
from tests.formats.hdf5_shards import WIDE, images, wide, write


def change(path: Path, name: str, row: int, value: int) -> int:
    """Overwrites a number, and returns where in the file it lies."""
    with h5py.File(path, "r+") as file:
        file[name][row] = value
        return file[name].id.get_chunk_info_by_coord((0,)).byte_offset + 8 * row


@pytest.mark.parametrize(
    ("row", "value", "record"), [(0, 1, 0), (7, -1, 6), (7, 2**62, 6), (7, 0, 6), (20, 1 << 20, 19), (20, 0, 19)]
)
def test_offsets_out_of_order_name_record_and_offset(tmp_path, row, value, record):
    path = write(tmp_path / "a", images(20))
    place = change(path, "image_offsets", row, value)
    with pytest.raises(CorruptRecordError, match=r"image_offsets holds .*expected increasing numbers") as raised:
        hdf5.Reader(path, IMAGE_CLASSIFICATION)
    assert (raised.value.path, raised.value.record, raised.value.offset) == (str(path), record, place)


def test_lists_beyond_the_items_are_named(tmp_path):
    path = write(tmp_path / "a", [wide(i) for i in range(20)], WIDE)
    change(path, "frames_lists", 5, 10_000)
    with pytest.raises(CorruptRecordError, match=r"record 4, .*frames_lists holds 10000"):
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
        (without("image"), "the file holds no dataset 'image' itself: restore the file"),
        (without("image_offsets"), "no dataset 'image_offsets'"),
        (instead("label", lambda file, name: file.create_group(name)), "'label' is not a dataset"),
        (instead("label", lambda file, name: file.__setitem__(name, [1, 2])), "different numbers of records"),
        (instead("label", lambda file, name: file.__setitem__(name, 1)), "not rows of numbers"),
        (instead("label", lambda file, name: file.__setitem__(name, ["1"])), "not rows of numbers"),
        (instead("image", lambda file, name: file.__setitem__(name, np.zeros(5))), "not a sequence of uint8"),
        (instead("image_offsets", lambda file, name: file.__setitem__(name, [0.0, 5.0])), "holds no offsets"),
        (
            instead("label", lambda file, name: file.__setitem__(name, h5py.SoftLink("/image_offsets"))),
            "itself: restore the file",
        ),
        (
            instead("label", lambda file, name: file.__setitem__(name, h5py.ExternalLink("b.h5", "/x"))),
            "itself: restore the file",
        ),
        (
            instead("label", lambda file, name: file.create_dataset(name, (1,), "i8", external=[("b.bin", 0, 8)])),
            "'label' is not a dataset whose data are in this file",
        ),
        (
            instead("label", lambda file, name: file.create_dataset(name, (2**50,), "i8", chunks=(8,))),
            "claims 9007199254740992 bytes",
        ),
        (
            instead(
                "image",
                lambda file, name: file.create_dataset(name, (2**40,), h5py.vlen_dtype("uint8"), chunks=(8,)),
            ),
            "image claims 17592186044416 bytes",
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


def test_flipped_bits_in_hdf5s_structures_give_errors_or_the_samples(tmp_path):
    """In its own process, which a crash of libhdf5 would end; every byte was tried once, this tries some."""
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
from dlio.dataset.schema import IMAGE_CLASSIFICATION
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
