"""RecordIO and MXNet's image record against their definitions, read by an independent few lines."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats import recordio
from dlio.formats.payloads import irheader
from dlio.testing.container import read_all, write_all

MAGIC = bytes.fromhex("0a23d7ce")
PIECES = st.lists(st.one_of(st.just(MAGIC), st.binary(max_size=9), st.just(bytes(4))), max_size=12)


def _frame(*parts):
    return b"".join(recordio.frame(list(parts)))


def _write(folder, schema, fields):
    samples = [Sample(f"k{number}", values) for number, values in enumerate(fields)]
    write_all(recordio.Writer(folder / "shard", schema), samples)
    return folder / "shard.rec"


def _read(path, schema):
    return read_all(recordio.Reader(path, schema))


def _records(content):
    """Yields the records of a file by the definition: the lower 29 bits are a length, the upper three a flag."""
    at, record = 0, b""
    while at < len(content):
        magic, word = struct.unpack_from("<II", content, at)
        assert magic == 0xCED7230A
        flag, length = word >> 29, word & 0x1FFFFFFF
        record += content[at + 8 : at + 8 + length]
        at += 8 + (length + 3) // 4 * 4
        if flag in (0, 3):
            yield record
            record = b""
        else:
            record += MAGIC


@pytest.mark.parametrize(
    ("data", "framed"),
    [
        (b"AAAA" + MAGIC + b"BBBBB", "0a23d7ce04000020414141410a23d7ce050000604242424242000000"),
        (MAGIC, "0a23d7ce000000200a23d7ce00000060"),
        (b"", "0a23d7ce00000000"),
        (b"A" + MAGIC + b"AAA", "0a23d7ce08000000410a23d7ce414141"),
    ],
)
def test_golden_bytes(data, framed):
    assert _frame(data).hex() == framed
    assert bytes(recordio.unframe(bytes.fromhex(framed))) == data


@given(PIECES)
def test_any_data_comes_back_and_magic_only_begins_parts(pieces):
    data = b"".join(pieces)
    framed = _frame(data)
    assert len(framed) % 4 == 0
    assert bytes(recordio.unframe(framed)) == data
    assert list(_records(framed)) == [data]


@given(PIECES, st.integers(0, 3))
def test_parts_give_the_bytes_of_the_whole(pieces, words):
    head = (MAGIC + bytes(8))[: 4 * words]
    assert _frame(head, b"".join(pieces)) == _frame(head + b"".join(pieces))


@given(st.binary(max_size=64))
def test_unframe_refuses_anything_else(data):
    try:
        found = recordio.unframe(data)
    except ValueError:
        return
    assert _frame(bytes(found)) == data or list(_records(data)) == [bytes(found)]


def test_an_image_record_by_its_definition(tmp_path):
    images = [b"", b"jpeg" + MAGIC * 2 + b"x", b"png"]
    path = _write(tmp_path, IMAGE_CLASSIFICATION, [{"image": image, "label": 7 * n} for n, image in enumerate(images)])
    for number, record in enumerate(_records(path.read_bytes())):
        assert struct.unpack("<IfQQ", record[:24]) == (0, 7.0 * number, number, 0)
        assert record[24:] == images[number]
    lines = [line.split("\t") for line in path.with_suffix(".idx").read_text().splitlines()]
    assert [int(key) for key, _ in lines] == [0, 1, 2]
    assert all(path.read_bytes()[int(offset) :].startswith(MAGIC) for _, offset in lines)


def test_several_labels_stand_after_the_header(tmp_path):
    schema = Schema.of({"image": "bytes", "label": "float32[3]"})
    label = np.array([0.5, -1, 2], dtype="float32")
    path = _write(tmp_path, schema, [{"image": b"img", "label": label}])
    (record,) = _records(path.read_bytes())
    assert struct.unpack("<IfQQ3f", record[:36]) == (3, 0.0, 0, 0, 0.5, -1.0, 2.0)
    assert record[36:] == b"img"


def _foreign(folder, records, index=None):
    path = folder / "im2rec.rec"
    framed = [_frame(record) for record in records]
    path.write_bytes(b"".join(framed))
    offsets = np.cumsum([0, *map(len, framed)])[:-1]
    if index is not None:
        path.with_suffix(".idx").write_text("".join(f"{key}\t{offsets[n]}\n" for n, key in index))
    return path


@pytest.mark.parametrize("index", [None, [(0, 12), (1, 7), (2, 30)], [(2, 0), (0, 5), (1, 9)]])
def test_we_read_im2recs_records_in_the_files_order(index, tmp_path):
    records = [struct.pack("<IfQQ", 0, n, 40 + n, 0) + b"i%d" % n for n in range(3)]
    found = _read(_foreign(tmp_path, records, index), IMAGE_CLASSIFICATION)
    assert [sample.fields for sample in found] == [{"image": b"i%d" % n, "label": n} for n in range(3)]
    assert [sample.key for sample in found] == ["40", "41", "42"]


def test_one_packed_label_is_a_label(tmp_path):
    record = struct.pack("<IfQQf", 1, 0, 0, 0, 5) + b"img"
    (found,) = _read(_foreign(tmp_path, [record]), IMAGE_CLASSIFICATION)
    assert found.fields == {"image": b"img", "label": 5}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b"short", "fewer than the 24"),
        (struct.pack("<IfQQ", 2**31, 0, 0, 0) + b"img", "announces"),
        (struct.pack("<IfQQ", 0, 0.5, 0, 0), "whole number"),
        (struct.pack("<IfQQ", 0, float("nan"), 0, 0), "whole number"),
        (struct.pack("<IfQQ", 0, 3e38, 0, 0), "int64"),
        (struct.pack("<IfQQ2f", 2, 0, 0, 0, 1, 1), "2 labels"),
    ],
)
def test_what_is_no_image_record_is_named(record, problem, tmp_path):
    path = _foreign(tmp_path, [struct.pack("<IfQQ", 0, 0, 0, 0), record])
    with pytest.raises(CorruptRecordError, match=problem) as raised:
        _read(path, IMAGE_CLASSIFICATION)
    assert (raised.value.record, raised.value.offset, raised.value.path) == (1, 32, str(path))


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_cut_file_is_an_error_or_whole_records(cut, tmp_path):
    record = struct.pack("<IfQQ", 0, 1, 0, 0) + MAGIC + b"abc"
    path = _foreign(tmp_path, [record] * 2)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CorruptRecordError, match="record 1"):
        _read(path, IMAGE_CLASSIFICATION)


def test_records_from_512_mib_are_refused(tmp_path):
    writer = recordio.Writer(tmp_path / "shard", IMAGE_CLASSIFICATION)
    with pytest.raises(SchemaError, match=r"'large', field 'image'.*536870912.*tfrecord"):
        writer.write(Sample("large", {"image": bytes(2**29 - 24), "label": 0}))
    writer.write(Sample("small", {"image": b"", "label": 0}))
    writer.close()
    assert len(_read(tmp_path / "shard.rec", IMAGE_CLASSIFICATION)) == 1


@pytest.mark.parametrize(
    ("types", "fits"),
    [
        ({"image": "bytes", "label": "int64"}, True),
        ({"label": "float32", "image": "bytes"}, True),
        ({"image": "bytes", "label": "float32[14]"}, True),
        ({"image": "bytes", "label": "float32[0]"}, False),
        ({"image": "bytes", "label": "float32[]"}, False),
        ({"image": "bytes", "label": "float32[2,2]"}, False),
        ({"image": "bytes", "label": "int32"}, False),
        ({"image": "bytes[]", "label": "int64"}, False),
        ({"image": "bytes", "target": "int64"}, False),
        ({"image": "bytes", "label": "int64", "name": "str"}, False),
    ],
)
def test_which_schemas_are_image_records(types, fits):
    assert irheader.fits(Schema.of(types)) is fits


def test_an_index_that_leaves_records_out_is_noticed(tmp_path):
    records = [struct.pack("<IfQQ", 0, n, n, 0) for n in range(3)]
    path = _foreign(tmp_path, records, [(0, 0), (2, 2)])
    reader = recordio.Reader(path, IMAGE_CLASSIFICATION)
    assert reader.read(1).fields["label"] == 2
    with pytest.raises(CorruptRecordError, match="expected one record"):
        reader.read(0)
    reader.close()


@pytest.mark.parametrize("text", ["0\t0 1\n", "0\t0\n1\t", "0\t-20\n1\t0\n", "0\tx\n", "\n"])
def test_a_damaged_index_is_refused(tmp_path, text):
    path = _foreign(tmp_path, [struct.pack("<IfQQ", 0, 1, 1, 0)], [(0, 0)])
    path.with_suffix(".idx").write_text(text)
    with pytest.raises(CorruptRecordError, match="expected 2 whole numbers a line"):
        recordio.Reader(path, IMAGE_CLASSIFICATION)
