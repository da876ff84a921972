"""Labels written as text keep their value as int64 or float32, or are refused by their line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import SourceError
from dlio.pack.labels import LabelColumn, is_number

WHOLE = st.one_of(st.integers(-(2**70), 2**70), st.integers(-5, 5), st.integers(2**53 - 3, 2**53 + 3))


def column(*texts: str) -> LabelColumn:
    return LabelColumn(Path("list"), range(11, 11 + len(texts)), texts)


@given(st.lists(WHOLE, min_size=1, max_size=5), st.sampled_from(["{}", "{}.", "{}.000", " {} ", "{:+}"]))
def test_whole_numbers_are_exact_or_refused(values, form):
    labels = column(*map(form.format, values))
    if all(-(2**63) <= value < 2**63 for value in values):
        assert labels.numbers().dtype == "int64"
        assert labels.numbers().tolist() == values
    else:
        with pytest.raises(SourceError, match="beyond an int64"):
            labels.numbers()


@given(st.lists(st.one_of(st.floats(allow_nan=False), WHOLE), min_size=1, max_size=5))
def test_other_numbers_are_near_and_whole_ones_exact_or_refused(values):
    labels = column(*map(str, values), "0.5")
    try:
        found = labels.floats()
    except SourceError:
        assert any(abs(value) > 3e38 or value == int(value) != int(np.float32(value)) for value in values)
        return
    assert found.dtype == "float32"
    for value, label in zip(values, found.tolist(), strict=False):
        assert abs(Fraction(value) - Fraction(label)) <= abs(Fraction(value)) / 2**24 + Fraction(2) ** -149
        assert not isinstance(value, int) or value == label


@pytest.mark.parametrize("text", ["", "nan", "inf", "-Infinity", "1_0", "0x1", "\u0663", "1,5", "1e", ".", "9" * 5000])
def test_what_is_no_number(text):
    assert not is_number(text)
    with pytest.raises(SourceError, match=r"list, line 12: the label .* is no number"):
        column("1", text).numbers()


@pytest.mark.parametrize("text", ["1e39", "-3.5e38", "1e400"])
def test_no_label_becomes_infinite(text):
    with pytest.raises(SourceError, match=r"list, line 12: the label .* is beyond a float32"):
        column("1", text).numbers()


def test_whole_numbers_among_others_keep_their_value_or_are_refused():
    assert column("16777216", "0.1").numbers().tolist() == [16777216, np.float32(0.1)]
    with pytest.raises(SourceError, match="line 11: the label '16777217' would become 16777216 as a float32"):
        column("16777217", "0.1").numbers()
    with pytest.raises(SourceError, match="line 11: the label '9007199254740993' would become"):
        column("9007199254740993", "0.1").numbers()
