"""Zlib streams that the core decompresses: the same bytes as zlib, and nothing beyond the limit."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio import native

pytestmark = pytest.mark.skipif(not native.decodes_png, reason="the core was built without libdeflate")


@given(st.binary(max_size=5000), st.integers(0, 9), st.integers(0, 9000))
def test_content_is_that_of_zlib_up_to_the_limit(content, level, limit):
    found = native.inflate(zlib.compress(content, level), limit)
    assert found == (content if len(content) <= limit else None)


def _by_zlib(stream: bytearray) -> bytes | None:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return None


@given(st.data())
def test_a_damaged_stream_gives_nothing(data):
    """Except for a flip of a bit that only fills a byte: zlib has the right bytes then, too."""
    stream = bytearray(zlib.compress(np.random.default_rng(0).bytes(200) * 3))
    stream[data.draw(st.integers(2, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    assert native.inflate(stream, 600) == _by_zlib(stream)
    assert native.inflate(stream[: data.draw(st.integers(0, len(stream) - 1))], 600) is None


@pytest.mark.parametrize("limit", [-1, 1 << 40])
def test_a_limit_that_no_block_has_is_refused(limit):
    with pytest.raises(TypeError):
        native.inflate(zlib.compress(b"x"), limit)


def test_what_is_no_buffer_is_refused():
    with pytest.raises(TypeError):
        native.inflate("text", 10)
