"""Caffe's Datum, against bytes laid out by hand from caffe.proto."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SchemaError
from dlio.formats.payloads import datum

RAW = Schema.of({"image": "uint8[?,?,?]", "label": "int64"})
FIXED = Schema.of({"image": "uint8[2,2,1]", "label": "int64"})
MINUS_ONE = b"\xff" * 9 + b"\x01"


def encode(sample: Sample, schema: Schema) -> bytes:
    return b"".join(datum.encoder(schema)(sample))


def caffe_datum():
    """The class that `protoc` makes of Caffe's definition, written down here a second time."""
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    definition = file.message_type.add(name="Datum")
    kinds = {"channels": 5, "height": 5, "width": 5, "data": 12, "label": 5, "float_data": 2, "encoded": 8}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        definition.field.add(name=name, number=number, type=kind, label=3 if name == "float_data" else 1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))


def test_an_encoded_image_is_data_label_and_encoded():
    sample = Sample("a", {"image": b"JPEG", "label": 3})
    assert encode(sample, IMAGE_CLASSIFICATION) == b"\x22\x04JPEG\x28\x03\x38\x01"


def test_raw_pixels_are_planes_in_the_order_bgr():
    image = np.arange(12, dtype="uint8").reshape(2, 2, 3)
    encoded = encode(Sample("a", {"image": image, "label": 1}), RAW)
    blue, green, red = bytes([2, 5, 8, 11]), bytes([1, 4, 7, 10]), bytes([0, 3, 6, 9])
    assert encoded == b"\x08\x03\x10\x02\x18\x02\x22\x0c" + blue + green + red + b"\x28\x01\x38\x00"


def test_grey_pixels_keep_their_order():
    image = np.arange(4, dtype="uint8").reshape(2, 2, 1)
    parsed = caffe_datum().FromString(encode(Sample("a", {"image": image, "label": 1}), RAW))
    assert (parsed.channels, parsed.height, parsed.width, parsed.data) == (1, 2, 2, bytes(range(4)))


@given(st.binary(), st.integers(-(2**31), 2**31 - 1))
def test_caffe_reads_what_is_written(image, label):
    sample = Sample("a", {"image": image, "label": label})
    parsed = caffe_datum().FromString(encode(sample, IMAGE_CLASSIFICATION))
    assert (parsed.data, parsed.label, parsed.encoded) == (image, label, True)
    assert parsed.SerializeToString() == encode(sample, IMAGE_CLASSIFICATION)
    assert datum.decode(encode(sample, IMAGE_CLASSIFICATION), IMAGE_CLASSIFICATION).fields == sample.fields


@given(st.tuples(*[st.integers(0, 5)] * 3), st.integers(0, 2**32))
def test_raw_pixels_come_back(shape, seed):
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype="uint8")
    decoded = datum.decode(encode(Sample("a", {"image": image, "label": 0}), RAW), RAW).fields["image"]
    np.testing.assert_array_equal(decoded, image, strict=True)
    assert decoded.flags.writeable and decoded.flags.c_contiguous


def test_reads_what_caffe_writes():
    parsed = caffe_datum()(channels=1, height=2, width=1, data=b"\x01\x02", label=-7, encoded=False)
    sample = datum.decode(parsed.SerializeToString(), Schema.of({"image": "uint8[2,1,1]", "label": "int64"}))
    assert sample.fields["image"].tolist() == [[[1]], [[2]]]
    assert sample.fields["label"] == -7


@pytest.mark.parametrize("label", [2**31, -(2**31) - 1])
def test_a_label_beyond_int32_is_refused(label):
    with pytest.raises(SchemaError, match=r"sample 'cat.jpg', field 'label'.*int32.*hdf5"):
        encode(Sample("cat.jpg", {"image": b"", "label": label}), IMAGE_CLASSIFICATION)


@pytest.mark.parametrize(
    ("data", "schema", "problem"),
    [
        (b"\xff\xff\xff", IMAGE_CLASSIFICATION, "not a Datum"),
        (b"\x28\x03\x38\x01", IMAGE_CLASSIFICATION, "no field 'data'"),
        (b"\x22\x01a\x38\x01", IMAGE_CLASSIFICATION, "no field 'label'"),
        (b"\x22\x01a\x28\x03", IMAGE_CLASSIFICATION, "raw pixels"),
        (b"\x22\x01a\x28\x03\x38\x01", RAW, "encoded image"),
        (b"\x08\x01\x10\x02\x18\x01\x22\x01a\x28\x03", RAW, "1 bytes of pixels"),
        (b"\x08" + MINUS_ONE + b"\x10" + MINUS_ONE + b"\x18\x01\x22\x01a\x28\x03", RAW, "1 bytes of pixels"),
        (b"\x08\x01\x10\x01\x18\x01\x22\x01a\x28\x03", FIXED, "expected"),
    ],
)
def test_any_other_datum_is_a_value_error(data, schema, problem):
    with pytest.raises(ValueError, match=problem):
        datum.decode(data, schema)


@pytest.mark.parametrize(
    ("types", "held"),
    [
        ({"image": "bytes", "label": "int64"}, True),
        ({"label": "int64", "image": "uint8[32,32,3]"}, True),
        ({"image": "bytes", "label": "float32[14]"}, False),
        ({"image": "uint8[32,32]", "label": "int64"}, False),
        ({"picture": "bytes", "label": "int64"}, False),
        ({"image": "bytes", "label": "int64", "name": "str"}, False),
    ],
)
def test_only_one_image_with_one_whole_label_is_a_datum(types, held):
    assert datum.holds(Schema.of(types)) is held
