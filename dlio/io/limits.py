"""How much memory one piece of input may take before anything proves that it is worth it, and who raises that.

An input is data of a stranger: a server that never ends its answer, a zip that inflates to a thousand times its size,
a sparse file that holds nothing. Each limit is far beyond what real data sets need; an environment variable raises it.
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
    """Returns the most bytes that a manifest may have; raises UsageError where DLIO_MAX_MANIFEST is no size."""
    return _limit("DLIO_MAX_MANIFEST")


def sample_bytes() -> int:
    """Returns the most bytes that an encoded image may have; raises UsageError where DLIO_MAX_SAMPLE is no size."""
    return _limit("DLIO_MAX_SAMPLE")


def _limit(variable: str) -> int:
    try:
        return parse_size(os.environ.get(variable) or _DEFAULTS[variable])
    except UsageError as error:
        raise UsageError(f"{variable}: {error}") from None
