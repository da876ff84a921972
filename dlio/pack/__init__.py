"""Packs a source of samples into shards; the public function is `dlio.pack`, of `dlio.pack.call`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio.pack.call import pack as pack


def __getattr__(name: str) -> Any:
    """Returns the function `pack`; to import a module of this package loads no other."""
    if name != "pack":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dlio.pack.call import pack

    return pack
