"""Shares of links: no flow gets more than an end has, and none could get more without another getting less."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.simulate.flows import Flows, exact_shares, near_shares
from tools.simulate.scheduler import MS, S, Scheduler

_RATE = 1_000_000_000  # bytes a second of each end

flows = st.lists(st.tuples(st.tuples(st.integers(0, 4), st.just("out")), st.tuples(st.integers(0, 4), st.just("in"))))


def _rate(end: Hashable) -> int:
    return _RATE


def _sums(ends: list[tuple[Hashable, Hashable]], shares: list[float]) -> dict[Hashable, float]:
    found: dict[Hashable, float] = {}
    for both, share in zip(ends, shares, strict=True):
        for end in both:
            found[end] = found.get(end, 0.0) + share
    return found


@given(flows)
def test_exact_shares_are_max_min_fair(ends: list[tuple[Hashable, Hashable]]) -> None:
    shares = exact_shares(ends, _rate)
    sums = _sums(ends, shares)
    full = {end for end, total in sums.items() if total > 1 - 1e-9}
    assert all(total < 1 + 1e-9 for total in sums.values())
    for both, share in zip(ends, shares, strict=True):  # at its own full end, no other has more
        others = [[s for b, s in zip(ends, shares, strict=True) if end in b] for end in both if end in full]
        assert any(share > max(each) - 1e-9 for each in others)


@given(flows)
def test_near_shares_fit_and_are_never_more_than_exact_ones_in_all(ends: list[tuple[Hashable, Hashable]]) -> None:
    near = near_shares(ends, _rate)
    assert all(total < 1 + 1e-9 for total in _sums(ends, near).values())
    assert sum(near) < sum(exact_shares(ends, _rate)) + 1e-9


@pytest.mark.parametrize(("nodes", "slack"), [(2, 1 * MS), (64, 40 * MS)])  # above 16 nodes a pass every 10 ms
def test_two_flows_into_one_node_take_twice_as_long_until_one_ends(nodes: int, slack: int) -> None:
    scheduler, ended = Scheduler(1), list[tuple[int, int]]()
    shared = Flows(scheduler, _rate, nodes)

    def noted(number: int) -> Callable[[], None]:
        return lambda: ended.append((number, scheduler.now))

    scheduler.call_at(0, lambda: shared.begin(0, 2, _RATE // 10, noted(0)))
    scheduler.call_at(0, lambda: shared.begin(1, 2, _RATE // 5, noted(1)))
    scheduler.run()
    for (number, at), (wanted, due) in zip(ended, [(0, S // 5), (1, 3 * S // 10)], strict=True):
        assert number == wanted
        assert abs(at - due) <= slack
