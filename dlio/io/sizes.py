"""Sizes, times and numbers of things as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from dlio.errors import UsageError

_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Returns the bytes that `text` means, such as 268435456, 256MiB, 256M or 0.5g; units are powers of 1024.

    Raises:
        UsageError: `text` is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size: expected a number with an optional unit, such as 256MiB")
    return int(Fraction(match[1]) * (1 << _UNITS[match[2].lower()]))


def format_size(num_bytes: float) -> str:
    """Returns a size for people, such as `268.4 MB`; units are powers of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Returns a time for people, such as `1.50 s`; what would be shown as 0.00 is `less than 0.01 s`, except for 0."""
    return "less than 0.01 s" if 0 < seconds < 0.01 else f"{seconds:.2f} s"


def format_date(time_ns: int) -> str:
    """Returns a time in ns since 1970 for people, such as `2026-11-24 20:13:25 UTC`."""
    try:
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time_ns // 10**9)
    except OverflowError:  # a file's time may be of any year
        return "before the year 1" if time_ns < 0 else "after the year 9999"
    return f"{date:%Y-%m-%d %H:%M:%S} UTC"


def counted(number: int, thing: str, things: str = "") -> str:
    """Returns such as `1 shard` or `2,000 shards`; `things` are those whose name does not only gain an s."""
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"
