"""Containers that dlio reads and does not write: shards that `dlio index` has found."""

from __future__ import annotations

from collections.abc import Callable

from dlio.dataset.schema import Schema


def not_written(name: str) -> Callable[[Schema], str]:
    """Returns the function `refuses` of such a format."""
    about = f"dlio can only read {name}: write the fields"
    return lambda schema: f"{about} {', '.join(map(repr, schema))} in another format"
