"""Fields, schemas and samples: their text, what they accept, and the checksum that formats share."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from crc32c import crc32c as crc_of_bytes
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.checksum import crc32c
from dlio.dataset.schema import IMAGE_CLASSIFICATION, NUMBER_TYPES, Field, ImageInfo, Sample, Schema
from dlio.errors import SchemaError

DIMS = st.none() | st.integers(0, 10**6)
NUMBER_FIELDS = st.builds(Field, st.sampled_from(sorted(NUMBER_TYPES)), st.lists(DIMS, max_size=4).map(tuple))
TEXT_FIELDS = st.builds(Field, st.sampled_from(["bytes", "str"]), st.lists(DIMS, max_size=1).map(tuple))
FIELDS = NUMBER_FIELDS | TEXT_FIELDS
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)


@given(FIELDS)
def test_a_fields_text_is_read_back(field):
    assert Field.parse(str(field)) == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("bytes", Field("bytes")),
        ("bytes[]", Field("bytes", (None,))),
        ("float32[14]", Field("float32", (14,))),
        ("uint8[?,?,3]", Field("uint8", (None, None, 3))),
        ("int64[?]", Field("int64", (None,))),
    ],
)
def test_types_as_they_are_written(text, field):
    assert Field.parse(text) == field


@pytest.mark.parametrize(
    "text",
    [
        *("", "int", "int65", "object", "complex64", "S3", "float128", "datetime64", "INT64"),
        *("bytes[2,3]", "str[?,?]", "int64[-1]", "int64[3", "int64[a]", "int64[1,]", "int64[]x", "int64[1.5]"),
        *(" int64", "int64 ", "bytes\n"),
    ],
)
def test_what_is_no_type(text):
    with pytest.raises(SchemaError, match="not a field type"):
        Field.parse(text)


@given(st.dictionaries(NAMES, FIELDS, max_size=6), st.lists(st.text(), max_size=3), st.integers(-1, 1))
def test_a_schemas_text_is_read_back(fields, class_names, offset):
    types = {name: str(field) for name, field in fields.items()}
    schema = Schema.of(types, tuple(class_names), offset)
    assert schema.types() == types
    assert Schema.of(schema.types(), schema.class_names, schema.label_offset) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert (list(schema), len(schema), dict(schema)) == (list(fields), len(fields), fields)


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "a/b", "é", "a-b", "a\n"])
def test_names_that_are_none(name):
    with pytest.raises(SchemaError, match="not a field name"):
        Schema.of({name: "bytes"})


def test_an_unknown_field_is_a_key_error():
    with pytest.raises(KeyError):
        IMAGE_CLASSIFICATION["mask"]
    assert "mask" not in IMAGE_CLASSIFICATION


def test_class_names_and_offset():
    schema = Schema.of({"label": "int64"}, ("cat", "dog"), label_offset=1)
    assert [schema.class_name(label) for label in (-1, 0, 1, 2, 3)] == ["", "", "cat", "dog", ""]


@pytest.mark.parametrize("name", sorted(NUMBER_TYPES))
def test_numbers_keep_type_and_value(name):
    dtype = np.dtype(name)
    largest = {"f": 2.0, "b": True}.get(dtype.kind) or int(np.iinfo(dtype).max)
    found = Field(name).convert(largest)
    assert found == largest
    assert type(found) is type(dtype.type(0).item())
    array = Field(name, (2, None)).convert([[largest], [largest]])
    assert (array.dtype, array.shape, array[0, 0]) == (dtype, (2, 1), largest)
    least = int(np.iinfo(dtype).min) if dtype.kind in "iu" else largest
    assert Field(name).convert(least) == least


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("int64", 1.5),
        ("int64", "1"),
        ("int64", None),
        ("int64", [1]),
        ("int64", 2**63),
        ("uint8", -1),
        ("uint8", 256),
        ("bool", 1),
        ("float32", 2**24 + 1),
        ("float32", "nan"),
        ("float32[2]", [1.0]),
        ("float32[2]", [[1.0, 2.0]]),
        ("float32[?,3]", np.zeros((3, 2))),
        ("uint8[]", [300]),
        ("bytes", "text"),
        ("bytes", None),
        ("bytes", [b"a"]),
        ("str", b"bytes"),
        ("bytes[]", b"a"),
        ("bytes[]", [b"a", "b"]),
        ("bytes[2]", [b"a"]),
        ("str[]", "word"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(text, value):
    schema = Schema.of({"field_name": text})
    with pytest.raises(SchemaError, match=r"'the key'.*'field_name'") as raised:
        schema.check(Sample("the key", {"field_name": value}))
    assert text in str(raised.value)


@given(st.binary(max_size=20))
def test_any_buffer_becomes_bytes(data):
    for value in (data, bytearray(data), memoryview(data)):
        found = Field("bytes").convert(value)
        assert (type(found), found) == (bytes, data)


@pytest.mark.parametrize("fields", [{}, {"image": b""}, {"image": b"", "label": 1, "mask": b""}])
def test_missing_and_unknown_fields_are_refused(fields):
    with pytest.raises(SchemaError, match="'k'"):
        IMAGE_CLASSIFICATION.check(Sample("k", fields))


def test_samples_survive_pickling_and_equal_without_the_header():
    sample = Sample("k", {"image": b"i", "label": 1}, ImageInfo("PNG", 1, 2, 3))
    again = pickle.loads(pickle.dumps(sample))
    assert (again, again.image_info) == (sample, sample.image_info)
    assert sample == Sample("k", {"image": b"i", "label": 1})


def test_the_checksum_runs_over_values_in_the_schemas_order():
    schema = Schema.of({"image": "bytes", "label": "int64", "name": "str", "box": "float32[2]"})
    box = np.array([0.5, -1], dtype=">f4")
    values = schema.check(Sample("k", {"box": box, "name": "é", "label": -2, "image": b"abc"}))
    expected = b"abc" + struct.pack("<q", -2) + "é".encode() + struct.pack("<2f", 0.5, -1) + struct.pack("<2Q", 3, 2)
    assert crc32c(values, schema) == crc_of_bytes(expected)


def test_the_checksum_tells_where_values_end():
    schema = Schema.of({"first": "bytes", "second": "bytes[]", "third": "uint8[?,?]"})

    def checksum(first, second, shape):
        return crc32c(Sample("", {"first": first, "second": second, "third": np.zeros(shape, "uint8")}), schema)

    sums = [
        checksum(b"ab", [b"c", b"d"], (2, 3)),
        checksum(b"a", [b"bc", b"d"], (2, 3)),
        checksum(b"ab", [b"cd"], (2, 3)),
        checksum(b"ab", [b"c", b"d", b""], (2, 3)),
        checksum(b"ab", [b"c", b"d"], (3, 2)),
    ]
    assert len(set(sums)) == len(sums)


@given(st.binary(min_size=1, max_size=64), st.integers(0, 511))
def test_the_checksum_tells_any_flipped_bit(image, bit):
    flipped = bytearray(image)
    flipped[bit // 8 % len(image)] ^= 1 << bit % 8
    sums = {crc32c(Sample("", {"image": bytes(data), "label": 0}), IMAGE_CLASSIFICATION) for data in (image, flipped)}
    assert len(sums) == 2


def test_a_column_major_array_has_its_values_checksum():
    schema = Schema.of({"box": "int16[2,3]"})
    box = np.arange(6, dtype="int16").reshape(2, 3)
    sums = {crc32c(Sample("", {"box": order}), schema) for order in (box, np.asfortranarray(box))}
    assert len(sums) == 1


@pytest.mark.parametrize("size", [500, 5000])
def test_numbers_are_summed_in_the_schemas_order_whatever_their_size(size):
    schema = Schema.of({"before": "int16", "many": f"float32[2,{size}]", "any": "uint8[?]", "after": "int64"})
    many, some = np.random.default_rng(1).random((2, size), np.float32), np.arange(9, dtype="uint8")
    sample = Sample("", {"before": 3, "many": np.asfortranarray(many), "any": some, "after": -1})
    parts = [b"\x03\x00", many.astype("<f4").tobytes(), some.tobytes(), b"\xff" * 8, (9).to_bytes(8, "little")]
    assert crc32c(sample, schema) == crc_of_bytes(b"".join(parts))


def test_lists_of_different_lengths_are_no_array():
    schema = Schema.of({"box": "float32[2,2]"})
    with pytest.raises(SchemaError, match=r"'k', field 'box': expected float32\[2,2\], found a list of 2 of unequal"):
        schema.check(Sample("k", {"box": [[1, 2], [3]]}))


def test_the_checksum_tells_which_of_two_values_has_a_byte():
    schema = Schema.of({"a": "bytes", "b": "bytes"}, (), 0)
    crcs = {crc32c(Sample("k", {"a": a, "b": b}), schema) for a, b in ((b"ab", b"c"), (b"a", b"bc"), (b"", b"abc"))}
    assert len(crcs) == 3
