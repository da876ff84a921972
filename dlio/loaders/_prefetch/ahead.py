"""Items that are made ahead of use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def ahead(made: Iterable[T], count: int) -> Iterator[T]:
    """Yields the items of `made`, `count` items later: copies that it starts run while earlier ones are in use."""
    waiting = deque[T]()
    for item in made:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
