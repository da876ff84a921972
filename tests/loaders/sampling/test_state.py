"""The state of a run: what it says, and which states are refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from dlio.errors import UsageError
from dlio.loaders.sampling.order import Window, epoch_order
from dlio.loaders.sampling.state import Position, Run, order_id
from tests.loaders.sampling.test_order import manifest_of

MANIFEST = manifest_of([5, 9, 4, 8])  # 13 samples in each of two lanes


def run(lanes: int = 2, seed: int = 3) -> Run:
    """Returns a run over the data set."""
    return Run(MANIFEST, True, seed, lanes, partial(lambda epoch: epoch_order(MANIFEST, epoch=epoch, lanes=lanes)))


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_position_is_found_again_and_counts_the_samples_of_all_lanes(lanes: int) -> None:
    state = run(lanes).state(Position(7, 4))
    assert (state["epoch"], state["samples"], state["seed"], state["version"]) == (7, 4 * lanes, 3, 1)
    assert run(lanes).position(state) == Position(7, 4)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"samples": 27}, "samples=27: expected a whole number from 0 to 26"),
        ({"samples": -1}, "samples=-1"),
        ({"samples": "4"}, "samples='4'"),
        ({"samples": 4.0}, "samples=4.0"),
        ({"epoch": 2**63}, "epoch=9223372036854775808"),
        ({"epoch": -1}, "epoch=-1"),
        ({"seed": 4}, "saved with seed=4, this loader has seed=3"),
        ({"order": "0" * 32}, "belongs to another data set, shuffle or number of lanes"),
        ({"version": 2}, "not a state of this version"),
        ({"more": 1}, "not a state of this version"),
    ],
    ids=str,
)
def test_what_is_no_state_of_this_run_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        run().position(run().state(Position(1, 2)) | change)


def test_the_last_position_of_an_epoch_is_one() -> None:
    assert run().position(run().state(Position(2**63 - 1, 13))) == Position(2**63 - 1, 13)


def test_what_changes_the_order_changes_its_id() -> None:
    ids = [
        order_id(MANIFEST, True, 1),
        order_id(MANIFEST, False, 1),
        order_id(MANIFEST, Window(2), 1),
        order_id(MANIFEST, Window(3), 1),
        order_id(MANIFEST, True, 2),
        order_id(replace(MANIFEST, origin={"plan": "other"}), True, 1),
        order_id(replace(MANIFEST, shards=MANIFEST.shards[::-1]), True, 1),
    ]
    assert len(set(ids)) == len(ids)
    assert order_id(replace(MANIFEST, format="lmdb"), True, 1) == ids[0]
