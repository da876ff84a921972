"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import UsageError
from dlio.io.sizes import format_date, format_seconds, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("123", 123),
        ("1k", 1024),
        ("1KiB", 1024),
        ("256MiB", 256 << 20),
        ("256M", 256 << 20),
        ("0.5g", 1 << 29),
        (" 2 GB ", 2 << 30),
        ("1TiB", 1 << 40),
        ("7b", 7),
    ],
)
def test_parses(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 PiB", "1e3", "1,5M", "0x10", "1 2", "١"])
def test_refuses_what_is_no_size(text):
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@given(st.integers(0, 1 << 60))
def test_any_number_of_bytes_parses(number):
    assert parse_size(str(number)) == number


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (268435456, "268.4 MB"), (5e15, "5000.0 TB")]
)
def test_formats(number, text):
    assert format_size(number) == text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0.00 s"), (1e-9, "less than 0.01 s"), (0.0099, "less than 0.01 s"), (0.01, "0.01 s"), (1234.5, "1234.50 s")],
)
def test_a_short_time_is_not_shown_as_none(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (-1, "1969-12-31 23:59:59 UTC"),
        (981_173_106_999_999_999, "2001-02-03 04:05:06 UTC"),
        (1 << 70, "after the year 9999"),
        (-1 << 70, "before the year 1"),
    ],
)
def test_format_date(time_ns: int, text: str) -> None:
    assert format_date(time_ns) == text
