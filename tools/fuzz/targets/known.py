"""Samples by the digests of their values, so that an input itself says what it may give."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

from dlio.dataset.schema import Field, Sample, Schema


def digest(kind: Field, value: Any) -> str:
    """Returns 16 hex digits that name a field's value, whether it is a sample's or a row of a column."""
    if kind.is_number:
        array = np.asarray(value, dtype=kind.dtype)
        parts = [repr(array.shape).encode(), array.tobytes()]
    elif kind.is_scalar:
        parts = [_bytes(value)]
    else:
        parts = [part for item in value for part in (b"%d " % len(_bytes(item)), _bytes(item))]
    return blake2b(b"".join(parts), digest_size=8).hexdigest()


def _bytes(value: Any) -> bytes:
    return value.encode(errors="surrogatepass") if isinstance(value, str) else bytes(value)


def digests(sample: Sample, schema: Schema) -> dict[str, str]:
    """Returns the digest of each field of a sample."""
    return {name: digest(kind, sample.fields[name]) for name, kind in schema.fields}
