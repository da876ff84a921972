"""The mistakes that are planted in the protocol: they fit the code, and each is of another promise."""

from __future__ import annotations

import pytest

from tools.simulate.mutants import mutations

PLANTED = mutations(["protocol/*"])


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_fits_the_code(mutation):
    assert mutation.text()


def test_there_are_as_many_as_promised_and_those_of_the_lists_come_with_them():
    assert len(PLANTED) >= 20
    assert len({mutation.promise for mutation in PLANTED}) == len(PLANTED)
    assert len(mutations()) > 100
    assert mutations()[: len(PLANTED)] == PLANTED
