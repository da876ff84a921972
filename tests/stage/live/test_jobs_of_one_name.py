"""Jobs of the same name that stage the same files at the same time, as outside a scheduler: they share a folder."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dlio.locking.owner import Owner
from dlio.stage.meeting import meeting
from dlio.stage.meeting.folder import meeting_folder
from dlio.stage.meeting.peer import Peer
from tests.helpers.forked import Forked, wait_for
from tests.helpers.live import meet_in, met

CONTENT = "c" * 32


@pytest.mark.parametrize("is_last", [True, False])
def test_a_job_that_fails_does_not_speak_for_another_that_stages_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """Both have one name, as outside of a scheduler: the other nodes would leave the one that runs."""
    meet_in(tmp_path, monkeypatch)
    at_work = Peer(0, ("127.0.0.1", 9), Owner.current(), False, 0, 1)
    met(CONTENT, 0, 2).tell(at_work)

    def second() -> None:
        met(CONTENT, 0, 2).leave(replace(at_work, owner=Owner.current()) if is_last else None)

    assert Forked(second).wait() == 0
    others = met(CONTENT, 1, 2)
    assert others.peer(0) == at_work
    met(CONTENT, 0, 2).leave()
    others.leave()
    assert not meeting_folder(CONTENT).exists()


def test_a_job_that_ends_leaves_the_meeting_to_one_of_its_name_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes would meet in two places, each with its own token, and wait for each other."""
    meet_in(tmp_path, monkeypatch)
    ended, began = met(CONTENT, 0, 1), met(CONTENT, 0, 2)
    last = Peer(0, ("127.0.0.1", 9), Owner.current(), True, 0, 0)
    ended.tell(last)
    ended.leave(last)
    later = met(CONTENT, 1, 2)
    assert later.token == began.token
    began.tell(replace(last, is_complete=False))
    assert (found := later.peer(0)) and not found.is_complete
    del later
    began.leave()
    assert not meeting_folder(CONTENT).exists()


def test_two_jobs_of_one_name_and_other_numbers_of_nodes_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would wait a minute for nodes of the other job, or end at its messages."""
    meet_in(tmp_path, monkeypatch)
    many, few = [met(CONTENT, node, 3) for node in range(3)], [met(CONTENT, node, 2) for node in range(2)]
    words = {each: Peer(each.node, ("127.0.0.1", 9), Owner.current(), False, 0, each.num_nodes) for each in many + few}
    for each, word in words.items():
        each.tell(word)
    assert [many[0].peer(node) for node in (1, 2)] == [words[many[node]] for node in (1, 2)]
    assert few[1].peer(0) == words[few[0]]
    for each in few:
        each.leave(words[each])
    assert met(CONTENT, 0, 3).peer(1) == words[many[1]]
    for each in many[:2]:
        each.leave(words[each])
    assert meeting_folder(CONTENT).exists()
    many[2].leave(words[many[2]])
    assert not meeting_folder(CONTENT).exists()


def test_a_meeting_stays_until_all_nodes_of_another_job_of_its_name_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    last = Peer(0, ("127.0.0.1", 9), Owner.current(), True, 0, 0)
    for each in (met(CONTENT, 0, 2), met(CONTENT, 0, 1)):
        each.tell(last)
        each.leave(last)
    later = met(CONTENT, 1, 2)
    later.tell(replace(last, node=1))
    assert later.peer(0) is None and not later.expects(0)
    later.leave(replace(last, node=1))
    assert not meeting_folder(CONTENT).exists()


def test_a_second_job_that_stages_the_same_asks_and_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another DEST. Its node would end at the first one's messages, and the other way round."""
    meet_in(tmp_path / "meet", monkeypatch)
    monkeypatch.setattr(meeting, "_TELL_SECONDS", (600.0, 0.0))
    at_work = Peer(0, ("127.0.0.1", 9), Owner.current(), False, 0, 1)
    first, other = met(CONTENT, 0, 2), met(CONTENT, 1, 2)
    other.tell(replace(at_work, node=1))
    path = meeting_folder(CONTENT)

    def second() -> None:
        node = met(CONTENT, 0, 2)
        wait_for(tmp_path / "told")
        [draft] = path.glob(".token.*")
        os.utime(draft, (1, 1))
        node.tell(replace(at_work, owner=Owner.current()))
        assert node.peer(1) and draft.stat().st_mtime > 1
        (tmp_path / "hidden").touch()
        wait_for(tmp_path / "left")
        assert path.exists()
        node.tell(replace(at_work, owner=Owner.current(), total_bytes=2))
        assert len(list(path.glob("node-0of2.json"))) == 1 and not list(path.glob(".token.*"))
        node.leave()

    child = Forked(second)
    wait_for(path / "node-1of2.json")
    while len(list(path.glob(".token.*"))) < 2:
        time.sleep(0.005)
    first.tell(at_work)
    (tmp_path / "told").touch()
    wait_for(tmp_path / "hidden")
    assert other.peer(0) == at_work
    first.leave(replace(at_work, is_complete=True))
    other.leave()
    (tmp_path / "left").touch()
    assert child.wait() == 0 and not path.exists()


@pytest.mark.parametrize("variable", ["TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "MASTER_PORT"])
def test_jobs_are_told_apart_by_what_their_launchers_give(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node1")
    places = set()
    for value in ("29500", "29501"):
        monkeypatch.setenv(variable, value)
        places.add(meeting_folder(CONTENT))
    assert len(places) == 2
