"""Items made ahead of use: how many, and when."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlio.loaders.prefetch.work import look_ahead


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 9])
def test_the_first_item_waits_for_no_other_and_later_ones_are_made_ahead(size: int, count: int) -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(size):
            made.append(number)
            yield number

    found, lengths = [], []
    for number in look_ahead(items(), count):
        found.append(number)
        lengths.append(len(made))
    assert found == list(range(size))
    assert lengths == [min(size, number + 1 + min(number, count)) for number in range(size)]
