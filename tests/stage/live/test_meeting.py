"""Meetings of nodes remove their own files, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlio.cluster import liveness
from dlio.errors import LauncherError, StorageError, UsageError
from dlio.io import world
from dlio.locking.owner import Owner, node_id
from dlio.stage.meeting import meeting as meeting_module
from dlio.stage.meeting import peer as peer_module
from dlio.stage.meeting.folder import MeetingFolder, meeting_folder
from dlio.stage.meeting.gathering import machines
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Introduced, Peer
from dlio.stage.protocol import tcp
from dlio.stage.protocol.tcp import TOKEN_BYTES, TcpListener
from dlio.stage.upkeep.clean import clean
from tests.helpers.forked import Forked
from tests.helpers.live import are_patient, eventually, meet_in, met
from tests.helpers.users import ALICE, BOB, as_user, open_to_all

CONTENT = "0" * 32
_LONG_AGO = (1_000_000_000, 1_000_000_000)


def test_only_old_meetings_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_in(tmp_path, monkeypatch)
    around = meeting_folder(CONTENT).parent
    foreign = [tmp_path / "huggingface", around / "huggingface", around / f"with-more-{CONTENT}"]
    ours = around / f"old-{CONTENT}"
    for folder in (*foreign, ours):
        folder.mkdir(parents=True)
        (folder / "token").write_text("secret")
    (foreign[2] / "more").write_text("kept")
    (ours / "node-0.json").write_text("of a version without the number of nodes in the name")
    for folder in (*foreign, ours):
        os.utime(folder, _LONG_AGO)
    met(CONTENT, 0, 2).leave()
    assert not ours.exists() and not meeting_folder(CONTENT).exists()
    assert all((folder / "token").exists() for folder in foreign[:2]) and (foreign[2] / "more").exists()


def test_clean_removes_what_dead_agents_of_the_job_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_7: None
) -> None:
    meet_in(tmp_path, monkeypatch)
    dead = replace(Owner.current(), started=1)
    meetings = [met(CONTENT, node, 2) for node in range(2)]
    for each, owner in zip(meetings, (dead, Owner.current()), strict=True):
        each.tell(Peer(each.node, ("127.0.0.1", 9), owner, False, 0, 0))
    around = meeting_folder(CONTENT)
    clean(tmp_path, job="8")
    assert sorted(path.name for path in around.iterdir()) == ["node-0of2.json", "node-1of2.json", "token"]
    clean(tmp_path)
    assert sorted(path.name for path in around.iterdir()) == ["node-1of2.json", "token"]
    meetings[1].tell(Peer(1, ("127.0.0.1", 9), dead, False, 0, 0))
    clean(tmp_path, job="7")
    assert not around.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
@pytest.mark.parametrize("below", ["", "job"])
def test_a_meeting_in_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    """Users share DLIO_MEET: one may have made what another would trust."""
    meet_in(tmp_path, monkeypatch)
    path = meeting_folder(CONTENT)
    planted = path if below else path.parent
    planted.mkdir(parents=True, mode=0o700)
    os.chown(planted, 54321, 54321)
    with pytest.raises(
        StorageError,
        match=f"{planted} belongs to another user, or others can change it: name another folder in DLIO_MEET",
    ):
        met(CONTENT, 0, 2)
    assert list(planted.iterdir()) == []


@pytest.mark.parametrize("loose", ["meet", "around"])
def test_a_place_that_anybody_can_swap_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loose: str
) -> None:
    meet = tmp_path / "around" / "meet"
    meet.mkdir(parents=True)
    meet_in(meet, monkeypatch)
    met(CONTENT, 0, 2)
    made = sorted(tmp_path.rglob("*"))
    ({"meet": meet, "around": meet.parent}[loose]).chmod(0o777)
    with pytest.raises(StorageError, match=r"anybody could replace .* whose mode is 777: .*\(chmod \+t\)"):
        met(CONTENT, 1, 2)
    assert clean(tmp_path, job="local") == []
    assert "meetings of earlier agents are left: anybody could replace" in caplog.text
    assert sorted(tmp_path.rglob("*")) == made


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_a_swapped_place_leads_no_agent_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mode is opened while Alice's agent runs; Bob puts a link to other files of hers where the folder was."""
    meet, home = open_to_all(tmp_path), tmp_path / "home"
    meet_in(meet, monkeypatch)
    mine = home / f"dlio-meet-{ALICE}" / f"local-{CONTENT}"

    def work() -> None:
        meeting = met(CONTENT, 0, 2)
        peer = Peer(0, ("127.0.0.1", 9), Owner.current(), False, 0, 0)
        meeting.tell(peer)
        swapped.wait()
        meeting.tell(replace(peer, staged_bytes=1))
        meeting.leave()

    def swap() -> None:
        (meet / f"dlio-meet-{ALICE}").rename(meet / "away")
        (meet / f"dlio-meet-{ALICE}").symlink_to(mine.parent)

    mine.mkdir(parents=True)
    for name in ("node-0of2.json", "token"):
        (mine / name).write_text("of another job")
        os.utime(mine / name, _LONG_AGO)
    for path in (mine.parent, mine, *mine.iterdir()):
        os.chown(path, ALICE, ALICE)
    swapped = _Swapped(meet / f"dlio-meet-{ALICE}" / f"local-{CONTENT}" / "node-0of2.json", meet, swap)
    assert as_user(ALICE, work) == 0
    assert {path.name: path.read_text() for path in mine.iterdir()} == dict.fromkeys(
        ("node-0of2.json", "token"), "of another job"
    )
    assert {path.stat().st_mtime for path in mine.iterdir()} == {_LONG_AGO[0]}
    assert list((meet / "away").iterdir()) == [], "it left where it was"


class _Swapped:
    """Makes Bob swap a folder once an agent has come."""

    def __init__(self, sign: Path, meet: Path, swap: Callable[[], None]) -> None:
        self._pipes = [os.pipe(), os.pipe()]
        come, done = self._pipes

        def bob() -> None:
            os.read(come[0], 1)
            assert sign.exists()
            meet.chmod(0o777)
            os.write(done[1], b"." if as_user(BOB, swap) == 0 else b"")

        self._bob = Forked(bob)

    def wait(self) -> None:
        """Returns once it is swapped; called by the agent."""
        os.write(self._pipes[0][1], b".")
        os.read(self._pipes[1][0], 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_record_of_another_user_is_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_in(tmp_path, monkeypatch)
    meetings = [met(CONTENT, node, 3) for node in range(3)]
    for each in meetings[1:]:
        each.tell(Peer(each.node, ("127.0.0.1", 9), Owner.current(), False, 0, 0))
    os.chown(meeting_folder(CONTENT) / "node-1of3.json", BOB, BOB)
    assert [meetings[0].peer(node) is not None for node in (1, 2)] == [False, True]


def test_users_share_the_place_of_meetings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_in(tmp_path, monkeypatch)
    ours = meeting_folder(CONTENT)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert meeting_folder(CONTENT).parent != ours.parent and meeting_folder(CONTENT).parent.parent == ours.parent.parent


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a user without a name")
def test_a_user_without_a_home_cleans_and_is_told_to_name_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "DLIO_MEET"):
        monkeypatch.delenv(name, raising=False)

    def work() -> None:
        os.setuid(54321)
        assert clean("/nowhere", job="7") == []
        with pytest.raises(UsageError, match="DLIO_MEET"):
            meeting_folder(CONTENT)

    assert Forked(work).wait() == 0


def test_a_meeting_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_in(tmp_path, monkeypatch)
    met(CONTENT, 0, 2)
    meeting_folder(CONTENT).chmod(0o750)
    with pytest.raises(StorageError, match="belongs to another user, or others can change it"):
        met(CONTENT, 1, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"staged_bytes": float("inf")},
        {"total_bytes": 10**400},
        {"had_bytes": -1},
        {"idle_seconds": -1},
        {"node": 2},
        {"bytes_per_second": True},
        {"address": ["127.0.0.1", 65536]},
        {"address": ["127.0.0.1\0", 9]},
        {"address": ["a name that takes long to look up", 9]},
        {"owner": {"node": "n", "namespace": "", "pid": 10**4200, "started": 1}},
    ],
    ids=str,
)
def test_absurd_records_are_no_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    meet_in(tmp_path, monkeypatch)
    meetings = [met(CONTENT, node, 3) for node in range(3)]
    record = Peer(1, ("127.0.0.1", 9), Owner.current(), False, 0, 0, waiting_for="why" * 1000).to_json()
    for node, each in ((1, record | change), (2, record | {"node": 2})):
        (meeting_folder(CONTENT) / f"node-{node}of3.json").write_text(json.dumps(each))
    assert meetings[0].peer(1) is None
    found = meetings[0].peer(2)
    assert found and len(found.waiting_for) == 200


def test_a_node_that_has_all_is_not_stuck_however_long_nothing_comes() -> None:
    lacking = Peer(0, ("", 0), Owner.current(), False, 1, 2, idle_seconds=10**6)
    assert lacking.is_stuck and not replace(lacking, is_complete=True).is_stuck


def test_a_node_that_keeps_less_than_its_copy_does_not_tell_that_it_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    meeting, own = met(CONTENT, 0, 2), Peer(0, ("127.0.0.1", 9), Owner.current(), True, 1, 1, keeps_all=False)
    meeting.tell(own)
    assert meeting.asked_by(1, [], own)["complete"] == ()
    meeting.tell(replace(own, keeps_all=True))
    assert meeting.asked_by(1, [], own)["complete"] == ((0, 1),)


def test_a_node_of_a_version_that_told_no_idle_time_is_a_peer() -> None:
    record = Peer(1, ("127.0.0.1", 9), Owner.current(), False, 0, 0, idle_seconds=7).to_json()
    assert record.pop("idle_seconds") == 7
    assert Peer.from_json(1, record).idle_seconds == 0


def test_a_node_that_had_all_is_shown_with_all_after_its_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    other, meeting = met(CONTENT, 1, 2), met(CONTENT, 0, 2)
    at_work = Peer(1, ("127.0.0.1", 9), Owner.current(), False, 3, 10)
    other.tell(at_work)
    assert meeting.known() == [at_work]
    other.leave(replace(at_work, is_complete=True, staged_bytes=10))
    eventually(lambda: [peer.staged_bytes for peer in meeting.known()] == [10])
    assert list(meeting.lost()) == []


def test_processes_of_a_job_that_was_killed_long_ago_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    place = MeetingFolder(meeting_folder(CONTENT), 0, 2, all_come=False)
    left = meeting_folder(CONTENT) / "rank-1of2.json"
    left.write_text('"elsewhere"')
    assert machines(place, 0, 2) == [node_id(), "elsewhere"]
    os.utime(left, _LONG_AGO)
    monkeypatch.setattr(liveness, "ARRIVAL_SECONDS", 0.2)
    with pytest.raises(LauncherError, match=r"ranks \[1\] of 2 did not come"):
        machines(place, 0, 2)


def test_a_node_that_nobody_has_asked_for_long_is_asked_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found in the folder, where its record may lie for hours after its end."""
    meet_in(tmp_path, monkeypatch)
    meeting, other = met(CONTENT, 0, 2), met(CONTENT, 1, 2)
    other.tell(Peer(1, ("127.0.0.1", 9), Owner.current(), False, 0, 0))
    assert not meeting.is_lost(1)
    assert meeting.is_lost(1, asks=True)
    assert meeting.is_lost(1)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_what_a_killed_run_has_left_is_of_nodes_that_have_not_come_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """They are starting again; those elsewhere are only known to refuse."""
    meet_in(tmp_path, monkeypatch)
    are_patient(monkeypatch)
    dead = replace(Owner.current(), started=1) if where == "here" else Owner("elsewhere/boot", "pid:[1]", 7, 1)
    met(CONTENT, 1, 2).tell(before := Peer(1, ("127.0.0.1", 9), dead, False, 3, 9))
    meeting = met(CONTENT, 0, 2)
    assert not meeting.is_lost(1, asks=True)
    assert meeting.peer(1) is None and meeting.expects(1) and meeting.awaits_any() and meeting.rooms(7) is None
    assert list(meeting.lost()) == meeting.known() == [] and meeting.absent() == [1]
    met(CONTENT, 1, 2).tell(now := replace(before, owner=Owner.current(), room=9))
    eventually(lambda: meeting.peer(1) == now and meeting.rooms(7) == (7, 9))


def test_a_node_that_was_heard_and_refuses_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_in(tmp_path, monkeypatch)
    met(CONTENT, 1, 2).tell(Peer(1, ("127.0.0.1", 9), Owner("elsewhere/boot", "pid:[1]", 7, 1), False, 3, 9))
    meeting = met(CONTENT, 0, 2)
    meeting.heard(1)
    assert meeting.is_lost(1, asks=True)
    assert not meeting.expects(1)


def test_a_node_that_asks_but_does_not_answer_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first question shows that it serves by now, and is a reason to try it once."""
    meet_in(tmp_path, monkeypatch)
    met(CONTENT, 1, 2).tell(Peer(1, ("127.0.0.1", 9), Owner("elsewhere/boot", "pid:[1]", 7, 1), False, 3, 9))
    meeting = met(CONTENT, 0, 2)
    assert meeting.peer(1)
    meeting.failed(1, TimeoutError())
    assert meeting.peer(1) is None
    meeting.heard(1)
    assert meeting.peer(1)
    meeting.failed(1, TimeoutError())
    meeting.heard(1)
    assert meeting.peer(1) is None


def test_a_node_of_this_run_that_was_killed_before_it_was_heard_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    meeting, other = met(CONTENT, 0, 2), met(CONTENT, 1, 2)
    other.tell(killed := Peer(1, ("127.0.0.1", 9), Owner("elsewhere/boot", "pid:[1]", 7, 1), False, 3, 9))
    os.utime(meeting_folder(CONTENT) / "node-1of2.json", (1 << 32, 1 << 32))
    with socket.socket() as listening:
        place = Introduced(bytes(TOKEN_BYTES), [killed, killed], TcpListener(listening, bytes(TOKEN_BYTES), CONTENT))
        for each in (meeting, Meeting(place, 0, 2, CONTENT)):
            assert each.is_lost(1, asks=True)
            assert not each.expects(1) and each.absent() == []
    assert list(meeting.lost()) == [killed]


def test_a_meeting_folder_that_hangs_is_not_awaited_once_for_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread is at it; readers that wait for this one give up after some seconds."""
    now, num_nodes = [1000.0], 32
    meet_in(tmp_path, monkeypatch)
    monkeypatch.setattr(world, "monotonic", lambda: now[0])
    meeting = met(CONTENT, 0, num_nodes)

    class Held:
        def acquire(self, timeout: float) -> bool:
            now[0] += timeout
            return False

    monkeypatch.setattr(meeting, "_looking", Held())
    assert [meeting.peer(node) for node in range(1, num_nodes)] == [None] * (num_nodes - 1)
    assert now[0] - 1000 == meeting_module.JOIN_SECONDS
    now[0] += 1
    assert meeting.peer(1) is None and now[0] - 1001 < meeting_module.JOIN_SECONDS + 0.5


def test_who_looks_into_a_meeting_folder_that_hangs_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    for name in ("JOIN_SECONDS", "_SOON_SECONDS", "_LEAVE_SECONDS"):
        monkeypatch.setattr(meeting_module, name, 0.02)
    meeting, other, answers = met(CONTENT, 0, 2), met(CONTENT, 1, 2), threading.Event()
    other.tell(there := Peer(1, ("127.0.0.1", 9), Owner.current(), False, 0, 0))
    find = meeting._place.find
    monkeypatch.setattr(meeting._place, "find", lambda node: [answers.wait(5), find(node)][1])
    assert meeting.peer(1) is None and meeting.is_lost(1)
    answers.set()
    eventually(lambda: meeting.peer(1) == there)
    leave, has_left = meeting._place.leave, threading.Event()
    answers.clear()
    monkeypatch.setattr(meeting._place, "leave", lambda last: [answers.wait(5), leave(last), has_left.set()][1])
    meeting.leave()
    assert not has_left.is_set()
    answers.set()
    assert has_left.wait(60)


def test_a_node_that_comes_again_is_found_when_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left alone for some time; nobody looks for it in the folder before it asks for something."""
    meet_in(tmp_path, monkeypatch)
    monkeypatch.setattr(peer_module, "_HEARD_SECONDS", (0.0, 0.0))
    meeting, other = met(CONTENT, 0, 2), met(CONTENT, 1, 2)
    before = Peer(1, ("127.0.0.1", 9), Owner.current(), False, 0, 0)
    other.tell(before)
    assert meeting.peer(1) == before
    meeting.failed(1, TimeoutError())
    after = replace(before, address=("127.0.0.1", 10))
    other.tell(after)
    assert meeting.peer(1) is None and meeting.is_lost(1)
    meeting.heard(1)
    assert meeting.peer(1) == after and not meeting.is_lost(1)


def test_nodes_pass_on_which_of_them_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of ten thousand would have to ask each other one before it ends."""
    meet_in(tmp_path, monkeypatch)
    meeting, own = met(CONTENT, 0, 5), Peer(0, ("127.0.0.1", 9), Owner.current(), False, 0, 0)
    assert meeting.asked_by(1, [(1, 2), (3, 4)], own)["complete"] == ((1, 2), (3, 4))
    assert meeting.awaits_any()
    assert meeting.asked_by(3, [(-9, 3), (2, 1 << 63)], own)["complete"] == ((1, 5),)
    assert not meeting.awaits_any()
    assert meeting.absent() == []


def test_a_node_that_starts_again_with_nothing_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever others still say of its last process."""
    meet_in(tmp_path, monkeypatch)
    meeting, other = met(CONTENT, 0, 3), met(CONTENT, 1, 3)
    own, before = (Peer(node, ("127.0.0.1", 9), Owner.current(), False, 0, 9) for node in (0, 1))
    other.tell(before)
    assert meeting.peer(1) == before
    assert meeting.asked_by(1, [(1, 3)], own)["complete"] == ((1, 3),)
    assert not meeting.awaits_any()
    other.tell(replace(before, address=("127.0.0.1", 10)))
    meeting.failed(1, TimeoutError())
    assert meeting.asked_by(2, [(0, 3)], own)["complete"] == ((2, 3),)
    assert meeting.awaits_any()


def test_nodes_that_are_lost_together_are_awaited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rack without power: no attempt to connect is answered, and each takes 2 s."""
    now, num_nodes = [1000.0], 12
    meet_in(tmp_path, monkeypatch)
    monkeypatch.setattr(world, "monotonic", lambda: now[0])
    meeting = met(CONTENT, 0, num_nodes)
    for node in range(1, num_nodes):
        met(CONTENT, node, num_nodes).tell(Peer(node, ("127.0.0.1", 9), Owner("elsewhere", "1", 1, 1), False, 0, 9))

    def connect(*_: object) -> None:
        now[0] += 2
        raise TimeoutError

    monkeypatch.setattr(tcp, "connect", connect)
    for node in range(1, num_nodes, 2):
        meeting.heard(node)  # half of them a moment before
    now[0] += 5
    began = now[0]
    while meeting.awaits_any():
        now[0] += 0.1
        assert now[0] - began < 2 * num_nodes + 2 * liveness.LOST_SECONDS


def test_nodes_that_got_stuck_together_are_not_awaited_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says for how long it has got nothing, so nobody has to watch it for ten minutes first."""
    meet_in(tmp_path, monkeypatch)
    stuck = Peer(1, ("127.0.0.1", 9), Owner.current(), False, 3, 9, idle_seconds=601)
    for node in range(1, 6):
        met(CONTENT, node, 6).tell(replace(stuck, node=node))
    assert not met(CONTENT, 0, 6).awaits_any()
    met(CONTENT, 5, 6).tell(replace(stuck, node=5, idle_seconds=599))
    assert met(CONTENT, 0, 6).awaits_any()


def test_a_last_word_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_in(tmp_path, monkeypatch)
    first, second = (MeetingFolder(meeting_folder(CONTENT), node, 3, all_come=False) for node in range(2))
    own, heard_out = Peer(1, ("", 0), Owner.current(), True, 9, 9), set[int]()
    second.tell(own)
    (meeting_folder(CONTENT) / "left-1of4.json").write_text("of another job")
    (meeting_folder(CONTENT) / "left-3of3.json").write_text("of no node")
    assert list(first.last_words(heard_out)) == []
    second.leave(own)
    assert list(first.last_words(heard_out)) == [replace(own, has_left=True)]
    assert list(first.last_words(heard_out)) == [] and heard_out == {1}
    again = MeetingFolder(meeting_folder(CONTENT), 1, 3, all_come=False)
    again.tell(own)
    assert list(first.last_words(heard_out)) == [] and heard_out == set()
    again.leave(own)
    assert [peer.node for peer in first.last_words(heard_out)] == [1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_last_node_removes_the_meeting_and_few_list_it(
    order: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    listed, names = list[int](), world.names
    monkeypatch.setattr(world, "names", lambda folder: listed.append(folder) or names(folder))
    meetings = [met(CONTENT, node, 3) for node in range(3)]
    for node, each in enumerate(meetings):
        each.tell(Peer(node, ("127.0.0.1", 9), Owner.current(), False, 0, 0))
    listed.clear()
    for node in order:
        assert meeting_folder(CONTENT).exists()
        meetings[node].leave()
    assert not meeting_folder(CONTENT).exists()
    assert len(listed) == 4 - order.index(0), "those after node 0, and for the removal"


@pytest.mark.parametrize("is_started", [False, True])
def test_an_interrupt_while_a_node_is_looked_up_leaves_nobody_waiting(
    is_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path, monkeypatch)
    meeting, other, start = met(CONTENT, 0, 2), met(CONTENT, 1, 2), world.start
    other.tell(there := Peer(1, ("127.0.0.1", 9), Owner.current(), False, 0, 0))

    def interrupted(call: Callable[[], object], name: str) -> world.Thread:
        if is_started:
            start(call, name).join()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            meeting.peer(1)
    assert meeting._looking.acquire(timeout=0)
    meeting._looking.release()
    assert meeting.peer(1) == there
