"""The `.npy` of numbers, against NumPy's own reading and writing."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dlio.formats.payloads import npy

DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
ARRAYS = DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0)))


def _saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@given(ARRAYS)
def test_numpy_reads_ours(array):
    found = np.load(io.BytesIO(npy.encode(array)), allow_pickle=False)
    assert found.shape == array.shape
    assert found.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


@given(ARRAYS)
def test_we_read_numpys(array):
    for order in "CF":
        found = npy.decode(_saved(np.asarray(array, order=order)))
        assert (found.shape, found.dtype) == (array.shape, array.dtype.newbyteorder("="))
        assert found.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


def test_same_bytes_as_numpys():
    array = np.arange(6, dtype="<i4").reshape(2, 3)
    encoded = npy.encode(array)
    begin = len(encoded) - array.nbytes
    assert begin % 64 == 0
    assert _saved(array).endswith(encoded[begin:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        _saved(np.arange(3))[:-1],
        _saved(np.arange(3)) + b"\0",
        _saved(np.array(["a"])),
        _saved(np.arange(3)).replace(b"(3,)", b"(9999999999999,)"),
        _saved(np.arange(3)).replace(b"'<i8'", b"'|O'  "),
        _saved(np.arange(3)).replace(b"'<i8'", b"'<i7'"),
        _saved(np.arange(3)).replace(b"False", b"eval("),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 40,
    ],
)
def test_anything_else_is_a_value_error(data):
    with pytest.raises(ValueError, match="npy"):
        npy.decode(data)


@given(st.integers(0, 8 * 140), st.integers(0, 1))
def test_flipped_bits_never_give_another_size(bit, _):
    data = bytearray(_saved(np.arange(3, dtype="int32")))
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    try:
        found = npy.decode(bytes(data))
    except ValueError:
        return
    assert found.nbytes == 12
