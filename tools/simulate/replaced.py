"""Functions and numbers that stand for those of the engine in a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replaced(owner: object, **values: object) -> Iterator[None]:
    """Gives attributes of a module or a class other values; KeyError if it has none of a name itself."""
    before = {name: vars(owner)[name] for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
