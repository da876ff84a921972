"""Labels written as text keep their value as int64 or float32, or are refused by their line."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.pack.listing.labels import LabelColumn, is_number_text

WHOLE = st.one_of(st.integers(-(2**70), 2**70), st.integers(-5, 5), st.integers(2**53 - 3, 2**53 + 3))


def column(*texts: str) -> LabelColumn:
    return LabelColumn(Path("list"), range(11, 11 + len(texts)), texts)


def refusals(*texts: str) -> list[str]:
    """Returns why texts are refused where numbers are expected."""
    labels = column(*texts)
    labels.numbers()
    return list(labels.refused.values())


@given(st.lists(WHOLE, min_size=1, max_size=5), st.sampled_from(["{}", "{}.", "{}.000", " {} ", "{:+}"]))
def test_whole_numbers_are_exact_or_refused(values, form):
    labels = column(*map(form.format, values))
    found = labels.numbers()
    assert found.dtype == "int64"
    for row, value in enumerate(values):
        if -(2**63) <= value < 2**63:
            assert found[row] == value
        else:
            assert "beyond an int64" in labels.refused.pop(row)
    assert not labels.refused


@given(st.lists(st.one_of(st.floats(allow_nan=False), WHOLE), min_size=1, max_size=5))
def test_other_numbers_are_near_and_whole_ones_exact_or_refused(values):
    labels = column(*map(str, values), "0.5")
    found = labels.floats()
    assert found.dtype == "float32"
    for row, (value, label) in enumerate(zip(values, found.tolist(), strict=False)):
        if row in labels.refused:
            assert abs(value) > 3e38 or value == int(value) != int(np.float32(value))
        else:
            assert abs(Fraction(value) - Fraction(label)) <= abs(Fraction(value)) / 2**24 + Fraction(2) ** -149
            assert not isinstance(value, int) or value == label


@pytest.mark.parametrize("text", ["", "nan", "inf", "-Infinity", "1_0", "0x1", "\u0663", "1,5", "1e", ".", "9" * 5000])
def test_what_is_no_number(text):
    assert not is_number_text(text)
    (reason,) = refusals("1", text)
    assert re.match("list, line 12: the label .* is not a number", reason)


@pytest.mark.parametrize("text", ["1e39", "-3.5e38", "1e400"])
def test_no_label_becomes_infinite(text):
    (reason,) = refusals("1", text)
    assert reason == f"list, line 12: the label {text!r} is beyond a float32"


def test_whole_numbers_among_others_keep_their_value_or_are_refused():
    assert column("16777216", "0.1").numbers().tolist() == [16777216, np.float32(0.1)]
    assert refusals("16777217", "0.1") == ["list, line 11: the label '16777217' would become 16777216 as a float32"]
    assert "'9007199254740993' would become" in refusals("9007199254740993", "0.1")[0]


def test_what_is_refused_leaves_the_type_of_the_others():
    labels = column("1", "two", "3")
    assert (labels.numbers().tolist(), labels.numbers().dtype) == ([1, 0, 3], "int64")
    assert list(labels.refused) == [1]


def test_numbers_among_names_are_refused_and_names_among_numbers():
    labels = column("cat", "dog", "3", "", "cat\udce9")
    values, names = labels.labels()
    assert names == ("cat", "dog")
    assert values[:2].tolist() == [0, 1]
    assert [reason.partition(": ")[2] for _, reason in sorted(labels.refused.items())] == [
        "the label '3' is a number, and most others are names",
        "the label is missing",
        "the label 'cat\\udce9' is not UTF-8",
    ]
    labels = column("1", "2", "cat")
    assert labels.labels()[1] == ()
    assert list(labels.refused) == [2]
