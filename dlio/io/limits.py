"""Limits on the memory that one input may take, and the environment variables that raise them.

An input may be hostile: a server whose answer never ends, a zip that inflates to a thousand times its size, a sparse
file without content. Each limit is far beyond the needs of real data sets.
"""

from __future__ import annotations

import os

from dlio.errors import UsageError
from dlio.io.sizes import parse_size

_DEFAULTS = {
    "DLIO_MAX_MANIFEST": "256MiB",  # lists half a million shards
    "DLIO_MAX_SAMPLE": "1GiB",  # twice the pixels of the largest image that is decoded
}


def manifest_bytes() -> int:
    """Returns the most bytes that a manifest may have; raises UsageError if DLIO_MAX_MANIFEST is not a size."""
    return _limit("DLIO_MAX_MANIFEST")


def sample_bytes() -> int:
    """Returns the most bytes that an encoded image may have; raises UsageError if DLIO_MAX_SAMPLE is not a size."""
    return _limit("DLIO_MAX_SAMPLE")


def _limit(variable: str) -> int:
    try:
        return parse_size(os.environ.get(variable) or _DEFAULTS[variable])
    except UsageError as error:
        raise UsageError(f"{variable}: {error}") from None
