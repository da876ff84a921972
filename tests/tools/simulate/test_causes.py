"""A second read of the source needs a cause, which the oracle of the simulator knows."""

from __future__ import annotations

import pytest

from tests.helpers.scene import read_by
from tools.simulate.scheduler import S


def test_the_latest_change_is_the_end_of_a_fault_or_the_begin_of_one_that_has_none(scene):
    causes = scene.oracle.causes
    assert causes.latest == 0
    scene.scheduler.now = 3 * S
    causes.begin("gone", {1})
    causes.begin("cut", {1, 2}).end = 20 * S
    assert causes.latest == 20 * S
    scene.scheduler.now = 30 * S
    causes.comes(2)  # again
    causes.happened("failure", {2})
    assert causes.latest == 20 * S
    causes.comes(3)
    assert causes.latest == 30 * S


def test_a_second_read_of_the_source_needs_a_cause(scene):
    read_by(scene, 0, 1 * S)
    scene.oracle.check_reads()
    assert not scene.broken
    assert scene.source.bytes_read == 40_000
    read_by(scene, 1, 2 * S)
    scene.oracle.check_reads(is_shared=False)
    assert not scene.broken
    scene.oracle.check_reads()
    assert scene.broken == ["read-once"]
    assert "node 1 read block 0 of shard-00000.bin at 2.000" in scene.oracle.violations[0].found


@pytest.mark.parametrize(
    ("node", "ends", "at", "is_fine"),
    [
        (0, 5, 6, True),  # the node that had it was cut off a short time ago
        (2, 5, 6, True),  # another one was: not all of them know it yet
        (0, 300, 200, True),  # it is cut off still
        (2, 300, 200, False),  # another one is, which all know by now
        (0, 5, 60, False),  # it is back for long
    ],
)
def test_a_cause_concerns_who_has_read_and_is_over_after_a_while(scene, node, ends, at, is_fine):
    read_by(scene, 0, 1 * S)
    trouble = scene.oracle.causes.begin("isolate", {node})
    read_by(scene, 1, at * S)
    trouble.end = ends * S
    scene.oracle.check_reads()
    assert scene.broken == ([] if is_fine else ["read-once"])


def test_a_process_reads_again_a_file_of_which_wrong_bytes_came(scene):
    name = next(iter(scene.data.contents))
    read_by(scene, 0, 60 * S)
    read_by(scene, 1, 61 * S)
    scene.oracle.check_reads(distrusted={(scene.scheduler.processes[1], name)})
    assert not scene.broken
    scene.oracle.check_reads(distrusted={(scene.scheduler.processes[0], name)})
    assert scene.broken == ["read-once"]


@pytest.mark.parametrize(
    ("kind", "home", "later", "is_fine"),
    [
        ("kill", 0, 6, True),  # not all know yet that a third node is back
        ("disk-slow", 0, 6, False),  # it concerns neither who reads nor the home
        ("disk-slow", 2, 6, True),  # the home is slow: each of the others reads for itself
        ("kill", 1, 200, True),  # the home was lost, and does not know who has read instead
        ("kill", 0, 200, False),
        ("disk-slow", 1, 200, False),
    ],
)
def test_a_fault_of_a_third_node_is_a_cause_if_it_seems_lost(scene, kind, home, later, is_fine):
    read_by(scene, 0, 4 * S)
    scene.oracle.causes.begin(kind, {2}).end = 5 * S
    scene.oracle.causes.troubles[0].begin = 3 * S
    read_by(scene, 1, later * S)
    scene.oracle.check_reads(lambda name, begin: home)
    assert scene.broken == ([] if is_fine else ["read-once"])


@pytest.mark.parametrize(("seconds", "is_fine"), [(1, False), (3, True)])
def test_a_third_node_whose_disk_hangs_for_long_seems_lost(scene, seconds, is_fine):
    read_by(scene, 0, 4 * S)
    scene.oracle.causes.begin("disk-hang", {2}).end = 5 * S
    scene.oracle.causes.troubles[0].begin = (5 - seconds) * S
    read_by(scene, 1, 6 * S)
    scene.oracle.check_reads(lambda *_: 0)
    assert scene.broken == ([] if is_fine else ["read-once"])


@pytest.mark.parametrize(("kind", "is_fine"), [("cut", False), ("disk-full", True)])
def test_a_process_reads_again_what_it_could_not_keep_only(scene, kind, is_fine):
    process = scene.process()
    scene.oracle.causes.begin(kind, {0})
    for at in (4, 5):
        read_by(scene, 0, at * S, process)
    scene.oracle.check_reads()
    assert scene.broken == ([] if is_fine else ["read-once"])
    scene.oracle.check_reads(kept={*scene.data.contents})
    assert len(scene.broken) == (not is_fine)


@pytest.mark.parametrize(
    ("first", "begin", "end", "is_fine"),
    [
        (6, 7, 8, True),
        (6, 2, 3, True),  # a short time before
        (40, 7, 8, False),  # a long time before
        (40, 50, 51, True),
        (6, 52, 53, False),
    ],
)
def test_a_process_reads_again_what_was_lost_since_it_read_it(scene, first, begin, end, is_fine):
    process = scene.process()
    scene.oracle.causes.begin("disk-stale", {0}).end = end * S
    scene.oracle.causes.troubles[0].begin = begin * S
    for at in (first, 51):
        read_by(scene, 0, at * S, process)
    scene.oracle.check_reads()
    assert scene.broken == ([] if is_fine else ["read-once"])


def test_each_node_reads_for_itself_what_only_a_lost_node_kept(scene):
    name = next(iter(scene.data.contents))
    scene.oracle.causes.begin("gone", {2})
    for node in (0, 1):
        read_by(scene, node, (100 + node) * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert not scene.broken
    scene.oracle.check_reads(lambda *_: 1, kept={name})
    assert scene.broken == ["read-once"]


def test_each_node_reads_for_itself_while_the_node_that_keeps_it_has_ended(scene):
    name = next(iter(scene.data.contents))
    read_by(scene, 2, 1 * S)
    for process in scene.scheduler.processes:
        process.kill()
    for node in (0, 1):
        read_by(scene, node, (100 + node) * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert not scene.broken
    scene.scheduler.now = 200 * S
    scene.process(2)
    read_by(scene, 0, 300 * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert scene.broken == ["read-once"]


@pytest.mark.parametrize(("again", "is_fine"), [(0, True), (50, False), (80, True)])
def test_each_node_reads_for_itself_while_the_node_that_keeps_it_is_gone_again(scene, again, is_fine):
    """It has come again after it had the block, and found it there; then it was killed, too."""
    name = next(iter(scene.data.contents))
    read_by(scene, 2, 1 * S)
    scene.scheduler.processes[-1].kill()
    scene.oracle.causes.comes(2)
    found = scene.process(2)
    scene.scheduler.now = 3 * S
    scene.oracle.causes.happened("kill", {2})
    found.kill()
    if again:
        scene.scheduler.now = again * S
        scene.process(2)
    for node in (0, 1):
        read_by(scene, node, (100 + node) * S)
    scene.oracle.check_reads(lambda *_: 2, kept={name})
    assert scene.broken == ([] if is_fine else ["read-once"])


@pytest.mark.parametrize(("comes", "is_fine"), [(0, False), (99, False), (200, True)])
def test_each_node_reads_for_itself_until_the_node_that_keeps_it_has_come(scene, comes, is_fine):
    """One that never comes is no cause: the others take its place."""
    name = next(iter(scene.data.contents))
    if comes:
        scene.scheduler.now = comes * S
        scene.oracle.causes.comes(7)
        scene.scheduler.now = 0
    for node in (0, 1):
        read_by(scene, node, (120 + node) * S)
    scene.oracle.check_reads(lambda *_: 7, kept={name})
    assert scene.broken == ([] if is_fine else ["read-once"])


def test_who_comes_when_all_have_left_reads_again(scene):
    read_by(scene, 0, 1 * S)
    scene.oracle.causes.comes(1)
    read_by(scene, 1, 50 * S)
    for process in scene.scheduler.processes:
        process.kill()
    scene.scheduler.now = 70 * S
    scene.oracle.causes.comes(2)
    read_by(scene, 2, 71 * S)
    scene.oracle.check_reads()
    assert scene.broken == ["read-once"]
    assert "node 1 read" in scene.oracle.violations[0].found
    scene.source.reads = {block: reads[1:] for block, reads in scene.source.reads.items()}
    scene.oracle.check_reads()
    assert len(scene.broken) == 1
