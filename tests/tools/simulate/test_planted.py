"""The mistakes planted in the protocol: they fit the code, and each breaks another promise."""

from __future__ import annotations

import pytest

from tools.mutants.mutation import Mutation, MutationError
from tools.mutants.view import View
from tools.simulate.mutants import LISTED, found, mutations

PLANTED = mutations(["protocol/*"])


@pytest.mark.parametrize("mutation", PLANTED, ids=lambda mutation: mutation.name)
def test_a_planted_mistake_fits_the_code(mutation):
    assert mutation.text()


def test_there_are_as_many_as_promised_and_those_of_the_lists_come_with_them():
    assert len(PLANTED) >= 25
    assert len({mutation.promise for mutation in PLANTED}) == len(PLANTED)
    assert {each.name for each in mutations()[len(PLANTED) :]} == set(LISTED)
    assert mutations()[: len(PLANTED)] == PLANTED


@pytest.mark.jobs
def test_a_planted_mistake_is_found_and_its_absence_is_not(tmp_path):
    mutation = next(each for each in PLANTED if each.name == "protocol/not-settled")
    result = found(View(tmp_path / "view"), mutation, 10, 300.0)
    assert result.seed is not None
    assert result.broken.startswith(("end", "pace"))


@pytest.mark.jobs
def test_a_mistake_in_code_that_no_schedule_runs_is_not_counted(tmp_path):
    line = "from __future__ import annotations\n"
    mutation = Mutation("protocol/elsewhere", "dlio/look/doctor.py", "", line, f"{line}_AWAY = 1\n", ())
    with pytest.raises(MutationError, match=r"expected dlio\.look\.doctor of "):
        found(View(tmp_path / "view"), mutation, 1, 300.0)
