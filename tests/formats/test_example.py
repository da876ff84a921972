"""What an Example says about an image, apart from the image itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.formats.payloads import example, features
from dlio.formats.payloads.wire import delimited, parse_varints, varint, varints
from dlio.pack.inspect.image_header import inspect_image
from tests.helpers.images import image


@pytest.mark.parametrize(
    ("kind", "mode", "channels", "colorspace"),
    [
        ("JPEG", "L", 1, b"Grayscale"),
        ("JPEG", "RGB", 3, b"RGB"),
        ("JPEG", "CMYK", 4, b"CMYK"),
        ("PNG", "I;16", 1, b"Grayscale"),
        ("PNG", "LA", 2, b"GrayscaleAlpha"),
        ("PNG", "P", 3, b"RGB"),
        ("PNG", "RGBA", 4, b"RGBA"),
    ],
)
def test_channels_and_colorspace_are_those_of_the_pixels(kind, mode, channels, colorspace):
    data = image(1, kind, mode)
    sample = Sample("a/1", {"image": data, "label": 0}, inspect_image(data))
    found = features.parse(b"".join(example.encoder(IMAGE_CLASSIFICATION)(sample)))
    assert list(found["image/channels"].int64_list.value) == [channels]
    assert list(found["image/colorspace"].bytes_list.value) == [colorspace]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_varints_are_written_together_as_one_by_one(numbers):
    together = varints(np.array(numbers, dtype=np.int64))
    assert together == b"".join(map(varint, numbers))
    assert parse_varints(together).tolist() == numbers


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\xff" * 10 + b"\x01"])
def test_damaged_varints_are_refused(data):
    with pytest.raises(ValueError, match="damaged"):
        parse_varints(data)


@pytest.mark.parametrize("kind", ["uint8[6]", "int64[6]", "uint32[2,3]", "float32[6]", "float16[6]"])
@pytest.mark.parametrize("layout", ["packed", "one by one", "mixed"])
def test_arrays_of_other_tools_and_older_shards_are_lists_of_numbers(kind, layout):
    schema = Schema.of({"values": kind, "label": "int64"})
    values = np.arange(195, 201).astype(schema["values"].dtype)
    expected = values.reshape(schema["values"].fixed_shape)
    if values.dtype.kind == "f":
        packed, single, number = values.astype("<f4").tobytes(), lambda v: b"\x0d" + np.float32(v).tobytes(), 2
    else:
        packed, single, number = b"".join(map(varint, values.tolist())), lambda v: b"\x08" + varint(int(v)), 3
    if layout == "packed":
        content = b"\x0a" + varint(len(packed)) + packed
    elif layout == "one by one":
        content = b"".join(map(single, values))
    else:
        last = packed[-4:] if values.dtype.kind == "f" else varint(int(values[-1]))
        content = b"".join(map(single, values[:-1])) + b"\x0a" + varint(len(last)) + last
    feature = delimited(2, delimited(number, [content]))
    label = delimited(2, delimited(3, delimited(1, [b"\x03"])))
    entries = [*delimited(1, delimited(1, [b"values"]) + feature), *delimited(1, delimited(1, [b"label"]) + label)]
    found = example.decode(b"".join(delimited(1, entries)), schema)
    assert np.array_equal(found.fields["values"], expected) and found.fields["label"] == 3
    data = b"".join(bytes(part) for part in example.encoder(schema)(Sample("k", found.fields)))
    assert np.array_equal(example.decode(data, schema).fields["values"], expected)
