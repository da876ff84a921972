"""Checksums of many samples at once, taken back to those that the package crc32c computes."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dlio import native
from dlio.dataset.checksum import retract
from dlio.dataset.sample_group import Pieces


@given(pieces=st.lists(st.binary(max_size=40), min_size=1, max_size=9), width=st.integers(0, 20), data=st.data())
def test_rows_are_taken_back(pieces: list[bytes], width: int, data: st.DataObject) -> None:
    rows = [data.draw(st.binary(min_size=width, max_size=width)) for _ in pieces]
    before = np.array([crc32c(piece) for piece in pieces], dtype=np.uint32)
    after = np.array([crc32c(piece + row) for piece, row in zip(pieces, rows, strict=True)], dtype=np.uint32)
    columns = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(pieces), width)
    assert (retract(after, columns) == before).all()


@pytest.mark.parametrize("core", [True, False])
def test_values_extend_checksums_with_and_without_the_core(core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", core and native.available)
    crcs = np.array([0, crc32c(b"ab")], np.uint32)
    Pieces.of([b"", b"cd"]).extend(crcs)
    assert crcs.tolist() == [0, crc32c(b"abcd")]
