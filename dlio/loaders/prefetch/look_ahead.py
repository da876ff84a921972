"""Items that are made ahead of use."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")


def look_ahead(made: Generator[T, None, None], count: int) -> Generator[T, None, None]:
    """Yields the items of `made`, up to `count` items later: copies that it starts run while earlier ones are in use.

    The first item waits for no other; each time one more is made ahead.
    """
    waiting = deque[T]()
    wanted = 0
    with closing(made):
        for item in made:
            waiting.append(item)
            del item  # its user may drop it
            if len(waiting) > wanted:
                yield waiting.popleft()
                wanted = min(wanted + 1, count)
        while waiting:
            yield waiting.popleft()
