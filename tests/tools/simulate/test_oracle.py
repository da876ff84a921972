"""The oracle of the simulator detects broken promises."""

from __future__ import annotations

import os
import shutil
from unittest import mock

import pytest

from dlio.dataset.manifest import NAME
from dlio.locking import claim
from dlio.locking.claim_file import Claim
from dlio.stage.copies.base_folder import CONTROL, LEASES
from dlio.stage.copies.folder import LIVE
from dlio.stage.copies.live_folder import FILES
from tests.helpers.scene import Scene
from tools.simulate.durable import Durable
from tools.simulate.oracle import GIVEN_BACK, PACE, PATIENCE
from tools.simulate.orders import Orders
from tools.simulate.scheduler import S


def whole(scene: Scene) -> None:
    for name, data in scene.data.contents.items():
        scene.name(name, data)
    (scene.copy / NAME).touch()
    scene.oracle.published(scene.copy, frozenset(scene.data.contents))


def test_right_bytes_are_fine_and_wrong_ones_are_not(scene):
    name, data = next(iter(scene.data.contents.items()))
    assert scene.oracle.delivered("loader", name, 100, 200, data[100:200])
    assert not scene.broken
    assert not scene.oracle.delivered("loader", name, 101, 201, data[100:200])
    assert scene.broken == ["right-bytes"]
    assert str(scene.oracle.violations[0]).startswith("right-bytes at 0.000000 s: no byte is delivered that is not")


def test_a_wrong_file_is_noticed_when_it_gets_its_name(scene):
    whole(scene)
    assert not scene.broken
    scene.name(next(iter(scene.data.contents)), b"wrong")
    assert scene.broken == ["proved-name"]


@pytest.mark.parametrize("syncs", [[True], [False], [], [False, True]])  # whether each succeeds
def test_a_file_that_is_not_on_the_disk_when_it_gets_its_name_is_noticed(scene, syncs):
    durable = scene.disk.durable = Durable(scene.disk.root)
    name, data = next(iter(scene.data.contents.items()))
    unfinished = scene.copy / CONTROL / name
    unfinished.write_bytes(data)
    for succeeds in syncs:
        with unfinished.open("rb") as file:
            (durable.synced if succeeds else durable.failed)(file.fileno())
    scene.do(lambda: scene.storage.replace(unfinished, scene.copy / name))
    durable.close()
    assert scene.broken == ([] if syncs == [True] else ["proved-name"])


def test_a_copy_that_lacks_a_file_is_noticed(scene):
    whole(scene)
    scene.oracle.check_copies(scene.disk)
    assert not scene.broken
    (scene.copy / next(iter(scene.data.contents))).unlink()
    scene.oracle.check_copies(scene.disk)
    assert scene.broken == ["whole-copy", "kept-copy"]


def test_a_finished_copy_of_which_nothing_is_left_is_noticed(scene):
    whole(scene)
    shutil.rmtree(scene.copy.parent)
    scene.oracle.check_copies(scene.disk)
    assert scene.broken == ["kept-copy"]


def test_a_part_that_an_agent_has_published_is_to_stay(scene):
    first, second = scene.data.contents
    scene.name(first, scene.data.contents[first])
    with scene.oracle.publishing(scene.copy, [first]):
        (scene.copy / NAME).touch()
        scene.oracle.check_copies(scene.disk)
    scene.oracle.check_copies(scene.disk)
    assert not scene.broken
    (scene.copy / NAME).unlink()
    scene.oracle.check_copies(scene.disk)
    assert scene.broken == ["kept-copy"]
    with scene.oracle.publishing(scene.copy, [first, second]):
        (scene.copy / NAME).touch()
        scene.oracle.check_copies(scene.disk)
        assert scene.broken == ["kept-copy", "whole-copy", "kept-copy"]


def test_a_finished_copy_without_a_lease_is_noticed(scene):
    (scene.copy.parent / LEASES / "copy@1").unlink()
    whole(scene)
    assert scene.broken == ["leased-copy"]


def test_two_processes_that_fill_a_copy_in_turn_are_noticed(scene):
    path = scene.copy / CONTROL / LIVE / FILES / "shard-00000.bin"
    path.parent.mkdir(parents=True)

    def write() -> None:
        descriptor = scene.storage.open(path, os.O_WRONLY | os.O_CREAT)
        scene.storage.pwrite(descriptor, b"x", 0)
        os.close(descriptor)

    one, other = scene.process(), scene.process()
    for process in (one, one, other, other):
        scene.do(write, process)
    assert not scene.broken
    scene.do(write, one)
    assert scene.broken == ["one-at-work"]


def test_a_job_that_takes_long_though_nothing_is_wrong_is_noticed(scene):
    scene.oracle.check_pace(PACE)
    assert not scene.broken
    scene.oracle.check_pace(PACE + 1)
    assert scene.broken == ["pace"]
    scene.oracle.causes.happened("kill", {0})
    scene.oracle.check_pace(PACE + 1)
    assert len(scene.broken) == 1


def test_an_agent_that_outlives_its_job_is_noticed(scene):
    scene.scheduler.now = GIVEN_BACK + 1
    scene.oracle.check_given_back(1)
    assert not scene.broken
    scene.oracle.check_given_back(0)
    assert scene.broken == ["given-back"]
    scene.oracle.causes.happened("stop", {0})
    scene.oracle.check_given_back(0)
    assert len(scene.broken) == 1


def test_a_node_that_sends_more_than_its_share_is_noticed(scene):
    scene.watching.sent_bytes.update({0: 200, 1: 0})
    scene.watching.check_shares([100, 0, 0])
    assert not scene.broken
    scene.watching.check_shares([99, 0, 0])
    assert scene.broken == ["share"]


def test_waiting_for_long_and_for_ever_are_noticed(scene):
    def wait() -> None:
        with scene.oracle.patience("loader"):
            scene.scheduler.pause(PATIENCE + S)

    scene.do(wait)
    assert scene.broken == ["patience"]
    scene.oracle.end([], 0)
    scene.oracle.end(["loader 0"], 0)
    assert scene.broken == ["patience", "end"]


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_take_other_samples_than_planned_are_noticed(scene: Scene, seed: int) -> None:
    orders = Orders(seed, scene.data.manifest, 3)  # of 7 samples
    for rank in (0, 1, 1):  # one of them was started again
        for number, step in enumerate(orders.steps(0, rank, 3)):
            scene.oracle.took(orders.take(rank, 0, number, step))
    assert not scene.broken
    assert orders.lacking([0]).startswith("no rank took sample")
    assert "ranks 0 and 2 took" in orders.take(2, 0, 0, orders.steps(0, 0, 3)[0])
    for number, step in enumerate(orders.steps(0, 2, 3)):
        assert not orders.take(2, 0, number, step)
    assert not orders.lacking([0])
    scene.oracle.took(orders.take(0, 1, 0, orders.steps(2, 0, 3)[0]) or orders.take(1, 1, 1, orders.steps(1, 1, 3)[0]))
    assert scene.broken == ["planned-order"]


def test_errors_without_a_fault_are_noticed(scene):
    scene.oracle.failed("loader: no", 1)
    assert scene.broken == ["no-error"]
    scene.oracle.causes.happened("kill", {0})
    scene.oracle.failed("loader: no", 1)
    assert len(scene.broken) == 1


def test_a_thread_that_ends_by_an_exception_is_noticed(scene):
    with pytest.raises(ZeroDivisionError):
        scene.do(lambda: 1 // 0)
    scene.oracle.check_crashes()
    assert scene.broken == ["no-crash"]


@pytest.mark.parametrize("lives", [True, False])
def test_who_takes_the_claim_of_a_living_process_is_noticed(scene, lives):
    owner = mock.Mock(is_alive=lambda: lives)
    taken = Claim(2, owner, "b"), Claim(1, owner, "a")
    with mock.patch.object(claim, "_wait_for_claim", lambda *_: taken), scene.watching.at_work():
        scene.do(lambda: claim._wait_for_claim(None, None, True))
    assert scene.broken == (["one-at-work"] if lives else [])


def test_a_changed_source_has_its_bytes_again_when_it_is_healed(scene):
    path = scene.data.manifest.root / next(iter(scene.data.contents))
    before = path.read_bytes(), path.stat().st_mtime_ns
    for kind in ("changed", "gone"):
        scene.source.spoil(kind, 0)
        assert not path.exists() or path.read_bytes() != before[0]
        scene.source.mend()
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
