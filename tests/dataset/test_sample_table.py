"""The table next to each shard: exact keys and numbers, laziness, and damage that is named and never trusted."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.checksum import crc32c
from dlio.dataset.sample_table import SampleTable, SampleTableBuilder
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, StorageError

SCHEMA = Schema.of({"image": "bytes", "label": "int64", "pose": "float32[3]", "big": "uint8[300]", "name": "str"})
KEYS = st.lists(st.text(min_size=1).filter(lambda key: key.isprintable()), max_size=12)


def sample(number: int, key: str | None = None) -> Sample:
    fields = {
        "image": bytes([number]) * number,
        "label": number - 3,
        "pose": np.full(3, number, "float32"),
        "big": np.zeros(300, "uint8"),
        "name": f"n{number}",
    }
    return SCHEMA.check(Sample(key if key is not None else f"key {number}", fields))


def built(samples: list[Sample], schema: Schema = SCHEMA) -> bytes:
    builder = SampleTableBuilder(schema)
    for row in samples:
        builder.append(row)
    assert len(builder) == len(samples)
    return builder.to_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shard.samples.npz"
    path.write_bytes(built([sample(number) for number in range(7)]))
    return path


@given(keys=KEYS)
def test_what_is_built_is_read(tmp_path: Path, keys: list[str]) -> None:
    samples = [sample(number, key) for number, key in enumerate(keys)]
    path = tmp_path / "shard.samples.npz"
    path.write_bytes(built(samples))
    table = SampleTable(path, SCHEMA, len(samples))
    assert table.keys(0, len(samples)) == keys
    assert [table.key(number) for number in range(len(samples))] == keys
    assert table.crcs.tolist() == [crc32c(row, SCHEMA) for row in samples] and table.crcs.dtype == np.uint32
    assert table.field("label").tolist() == [row.fields["label"] for row in samples]
    assert table.field("pose").shape == (len(samples), 3) and table.field("pose").dtype == np.float32
    table.close()
    table.close()


def test_only_small_numbers_are_kept_and_are_read_only(path: Path) -> None:
    assert list(SCHEMA.small) == ["label", "pose"]
    table = SampleTable(path, SCHEMA, 7)
    with pytest.raises(CorruptRecordError, match="'field_big' is missing"):
        table.field("big")
    with pytest.raises(ValueError, match="read-only"):
        table.field("label")[0] = 1
    table.close()


def test_equal_rows_give_equal_bytes_that_numpy_reads(path: Path) -> None:
    assert path.read_bytes() == built([sample(number) for number in range(7)])
    arrays = np.load(path)
    assert arrays["field_label"].tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert arrays["key_bytes"].tobytes() == b"".join(b"key %d" % number for number in range(7))


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None], compression: int = zipfile.ZIP_STORED) -> None:
    """Writes the file again after `change` was made to its members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def read_all(path: Path) -> None:
    table = SampleTable(path, SCHEMA, 7)
    try:
        table.keys(0, 7)
        _ = table.crcs
        table.field("label")
        table.field("pose")
    finally:
        table.close()


CHANGES: dict[str, Callable[[dict[str, bytes]], None]] = {
    "a column is missing": lambda members: members.__delitem__("crc32c.npy"),
    "other dtype": lambda members: members.update({"field_label.npy": npy(np.zeros(7, "int32"))}),
    "other count": lambda members: members.update({"field_label.npy": npy(np.zeros(8, "int64"))}),
    "other shape": lambda members: members.update({"field_pose.npy": npy(np.zeros((3, 7), "float32"))}),
    "fortran order": lambda members: members.update(
        {"field_pose.npy": npy(np.asfortranarray(np.zeros((7, 3), "float32")))}
    ),
    "objects": lambda members: members.update({"key_bytes.npy": npy(np.array([{}], dtype=object))}),
    "no array": lambda members: members.update({"field_label.npy": b"no array at all"}),
    "empty": lambda members: members.update({"field_label.npy": b""}),
    "shorter than its header says": lambda members: members.update({"field_label.npy": npy(np.zeros(7, "int64"))[:-9]}),
    "offsets out of order": lambda members: members.update(
        {"key_offsets.npy": npy(np.array([0, 5, 3, 9, 12, 15, 20, 35]))}
    ),
    "offsets beyond the end": lambda members: members.update({"key_offsets.npy": npy(np.arange(8) * 1000)}),
    "offsets below zero": lambda members: members.update({"key_offsets.npy": npy(np.arange(8) - 1)}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_columns_that_lie_are_refused(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    rewritten(path, change)
    with pytest.raises(CorruptRecordError, match=r"shard\.samples\.npz"):
        read_all(path)


def test_compressed_members_are_refused(path: Path) -> None:
    """A small file could stand for any amount of memory."""
    rewritten(path, lambda members: None, zipfile.ZIP_DEFLATED)
    with pytest.raises(CorruptRecordError, match="is compressed"):
        read_all(path)


def test_a_cut_file_is_refused_wherever_it_is_cut(path: Path) -> None:
    data = path.read_bytes()
    for size in range(0, len(data) - 1, 37):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptRecordError):
            read_all(path)


def all_of(path: Path) -> list[object]:
    table = SampleTable(path, SCHEMA, 2)
    try:
        numbers = [table.crcs, table.num_bytes, table.field("label"), table.field("pose")]
        return [table.keys(0, 2), *(column.tolist() for column in numbers)]
    finally:
        table.close()


def test_every_flipped_bit_is_named_or_changes_nothing(path: Path) -> None:
    content = bytearray(built([sample(number) for number in range(2)]))
    path.write_bytes(content)
    expected = all_of(path)
    harmless = set()
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * len(content)):
            file.seek(bit // 8)
            file.write(bytes([content[bit // 8] ^ 1 << bit % 8]))
            try:
                assert all_of(path) == expected, f"bit {bit} changes what is read"
                harmless.add(bit // 8)
            except CorruptRecordError as error:
                assert error.path == str(path)
            file.seek(bit // 8)
            file.write(content[bit // 8 : bit // 8 + 1])
    header, entry, end, num_columns = 30, 46, 22, 6
    assert len(harmless) < num_columns * (header + 20 + entry) + end, "bits of the columns are not checked"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"shard\.samples\.npz"):
        SampleTable(tmp_path / "shard.samples.npz", SCHEMA, 7)
