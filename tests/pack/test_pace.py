"""Limits of operations and bytes a second."""

from __future__ import annotations

import random
import threading

import pytest

import dlio
from dlio.pack import pace
from dlio.pack.pace import Limits, Pace, limited
from dlio.sources import image_folder
from tests.pack.slow_storage import FAST, SLOW, storage


def test_never_lets_more_through_than_its_limits():
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    held = Pace(Limits(100.0, 1e6), clock=lambda: now[0], sleep=sleep)
    random_ = random.Random(1)
    operations = num_bytes = 0
    for _ in range(1000):
        taken = random_.randrange(1, 4), random_.randrange(0, 30_000)
        held.spend(*taken)
        assert operations <= 100.0 * now[0] + 1e-6  # all before this one
        assert num_bytes <= 1e6 * now[0] + 1e-3
        operations, num_bytes = operations + taken[0], num_bytes + taken[1]
        now[0] += random_.choice([0.0, 0.0, 0.001])
    assert sum(slept) > 0


def test_what_is_not_used_is_gone():
    now, slept = [0.0], []
    held = Pace(Limits(operations=10.0), clock=lambda: now[0], sleep=slept.append)
    now[0] = 3600.0
    for _ in range(3):
        held.spend(1)
    assert slept == [pytest.approx(0.1), pytest.approx(0.2)]


def test_workers_share_it():
    assert Limits(100.0, None).share(4) == Limits(25.0, None)


@pytest.mark.parametrize("limits", [(0, None), (None, -1), (float("nan"), None)])
def test_a_limit_that_lets_nothing_through_is_refused(limits):
    with pytest.raises(dlio.errors.UsageError, match="more than 0"):
        Limits(*limits)


@pytest.mark.parametrize("seconds", [SLOW, FAST])
def test_counts_what_is_asked_of_the_source(photos, tmp_path, monkeypatch, seconds):
    taken = []
    monkeypatch.setattr(Pace, "spend", lambda self, operations, num_bytes=0: taken.append((operations, num_bytes)))
    with storage(seconds):
        dlio.pack(image_folder(photos), tmp_path / "out", engine="serial", max_ops=1e9)
    sizes = sum(path.stat().st_size for path in photos.rglob("*.png"))
    folders = 4 * (3 + 1)  # listed, and statted
    assert sum(operations for operations, _ in taken) == folders + 36 * (1 + pace.FILE_OPERATIONS)
    assert sum(num_bytes for _, num_bytes in taken) == sizes


def test_the_limits_of_a_thread_are_its_own():
    found = []
    with limited(Limits(5.0)):
        thread = threading.Thread(target=lambda: found.append(pace.is_limited()))
        thread.start()
        thread.join()
        assert pace.is_limited()
    assert found == [False]
    assert not pace.is_limited()
