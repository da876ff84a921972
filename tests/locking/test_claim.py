"""One of many processes does the work; the others wait, or replace a dead one."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import pytest

from dlio.cluster import liveness
from dlio.errors import StorageError
from dlio.io import world
from dlio.io.open_folder import Below, OpenFolder
from dlio.locking import claim_file
from dlio.locking.claim import claimed, exclusively, forget, holder_in
from dlio.locking.owner import Owner
from tests.helpers.forked import Forked, wait_for


def work_once(folder: Path, done: Path, log: Path) -> None:
    with claimed(folder, done.exists) as mine:
        if mine is not None:
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(0.05)
            done.touch()


def test_of_sixteen_processes_one_works(tmp_path: Path) -> None:
    for attempt in range(5):
        folder, done, log = tmp_path / f"claims{attempt}", tmp_path / f"done{attempt}", tmp_path / f"log{attempt}"
        children = [Forked(lambda f=folder, d=done, o=log: work_once(f, d, o)) for _ in range(16)]  # type: ignore[misc]
        assert [child.wait() for child in children] == [0] * 16
        assert len(log.read_text().splitlines()) == 1
        assert not list(folder.iterdir())


def hold(folder: Path, ready: Path) -> None:
    with claimed(folder, lambda: False):
        ready.touch()
        time.sleep(1000)


def test_a_killed_owner_is_succeeded_by_exactly_one(tmp_path: Path) -> None:
    folder, done, log = tmp_path / "claims", tmp_path / "done", tmp_path / "log"
    owner = Forked(lambda: hold(folder, tmp_path / "ready"))
    wait_for(tmp_path / "ready")
    waiting = [Forked(lambda: work_once(folder, done, log)) for _ in range(8)]
    time.sleep(0.2)
    assert not log.exists()
    os.kill(owner.pid, 9)  # left a zombie: the wait below comes after the takeover
    assert [child.wait() for child in waiting] == [0] * 8
    assert len(log.read_text().splitlines()) == 1
    owner.wait()


def test_an_interrupted_owner_leaves_the_work_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(tmp_path / "claims", lambda: False) as first:
        raise KeyboardInterrupt
    assert first is not None
    done = tmp_path / "done"
    with claimed(tmp_path / "claims", done.exists) as second:
        assert second is not None
        assert (second[0].number, second[1].token) == (2, first[0].token)  # type: ignore[union-attr]
        done.touch()


def test_who_finds_no_room_succeeds_one_that_has_made_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Below(tmp_path, ("claims",))

    def full(*_: object) -> None:
        raise StorageError(errno.ENOSPC, "no room")

    def other_makes_room() -> bool:
        patch.undo()
        first = claim_file.make(folder, 1)
        assert first
        claim_file.rewrite(folder, replace(first, state="released"))
        return False

    with monkeypatch.context() as patch:
        patch.setattr(claim_file, "make", full)
        with claimed(folder, lambda: False, give_way=other_makes_room) as claims:
            assert claims and claims[0].number == 2
    monkeypatch.setattr(claim_file, "make", full)
    with pytest.raises(StorageError, match="no room"), claimed(folder, lambda: False, give_way=lambda: False):
        pass


def fail(folder: Path, ready: Path, go: Path) -> None:
    with claimed(folder, lambda: False):
        ready.touch()
        wait_for(go)
        raise ValueError("the disk is on fire")


def expect_failure(folder: Path, waiting: Path) -> None:
    looks = count()

    def is_done() -> bool:
        if next(looks):  # it has seen the other's claim
            waiting.touch()
        return False

    with pytest.raises(StorageError, match="failed: the disk is on fire"), claimed(folder, is_done):
        pass


def test_a_failure_reaches_waiting_processes_but_no_later_ones(tmp_path: Path) -> None:
    folder = tmp_path / "claims"
    owner = Forked(lambda: fail(folder, tmp_path / "ready", tmp_path / "go"))
    wait_for(tmp_path / "ready")
    waiting = Forked(lambda: expect_failure(folder, tmp_path / "waiting"))
    wait_for(tmp_path / "waiting")
    (tmp_path / "go").touch()
    assert waiting.wait() == 0
    assert owner.wait() == 1
    work_once(folder, tmp_path / "done", tmp_path / "log")
    assert (tmp_path / "done").exists()


def foreign_claim(folder: Path) -> Path:
    folder.mkdir()
    owner = {"node": "elsewhere", "namespace": "pid:[1]", "pid": 1, "started": 1}
    (folder / "1").write_text(json.dumps({"owner": owner, "token": "t", "state": "held"}))
    return folder / "1"


@pytest.mark.parametrize("token", ["../../precious", "a/b", "", ".", 7])
def test_a_claim_whose_token_leads_elsewhere_is_of_nobody(tmp_path: Path, token: object) -> None:
    path = foreign_claim(tmp_path / "claims")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"token": token}))
    with claimed(tmp_path / "claims", lambda: False) as found:
        assert found is not None and found[1] is not None
        assert (found[1].token, found[1].state) == ("unknown", "released")


def test_an_owner_elsewhere_without_heartbeat_is_presumed_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LOST_WRITER_SECONDS", 0.3)
    foreign_claim(tmp_path / "claims")
    work_once(tmp_path / "claims", tmp_path / "done", tmp_path / "log")
    assert (tmp_path / "log").exists()


def test_an_owner_elsewhere_is_waited_for_while_its_heart_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "LOST_WRITER_SECONDS", 0.0)
    path, beats = foreign_claim(tmp_path / "claims"), count(1)

    def beat_before_each_look() -> bool:
        os.utime(path, (0, beat := next(beats)))
        return beat == 10

    with claimed(tmp_path / "claims", beat_before_each_look) as mine:
        assert mine is None
    assert next(beats) == 11


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": {}}'])
def test_a_claim_cut_off_by_a_crash_has_no_owner(tmp_path: Path, text: str) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "3").write_text(text)
    work_once(tmp_path / "claims", tmp_path / "done", tmp_path / "log")
    assert (tmp_path / "done").exists()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="claim"), claimed(tmp_path / "file" / "claims", lambda: False):
        pass


def beat_until(end: Path, path: Path) -> None:
    while not end.exists():
        os.utime(path)
        time.sleep(0.02)


class TestAlone:
    def test_a_second_process_learns_who_works_and_no_folder_stays(self, tmp_path: Path) -> None:
        folder = tmp_path / "claims"
        with exclusively(folder, "feast"):
            with pytest.raises(StorageError, match=rf"another feast is under way, by process {os.getpid()} on "):  # noqa: SIM117
                with exclusively(folder, "feast"):
                    pass
            assert folder.exists()
        assert not folder.exists()

    def test_an_error_leaves_no_claim(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="cold"), exclusively(tmp_path / "claims", "feast"):
            raise ValueError("cold")
        assert not (tmp_path / "claims").exists()

    def test_a_claim_that_finds_no_room_leaves_no_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StorageError, match="cannot claim"), exclusively(tmp_path / "claims", "feast"):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_an_owner_elsewhere_is_told_by_its_heartbeat(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = foreign_claim(tmp_path / "claims")
        other = Forked(lambda: beat_until(tmp_path / "end", path))
        with (
            pytest.raises(StorageError, match="by process 1 on elsewhere"),
            exclusively(tmp_path / "claims", "feast"),
        ):
            pass
        (tmp_path / "end").touch()
        assert other.wait() == 0
        monkeypatch.setattr(liveness, "LOST_WRITER_SECONDS", 0.3)
        with exclusively(tmp_path / "claims", "feast"):
            pass
        assert not (tmp_path / "claims").exists()


def write_claim(folder: Path, number: str, owner: Owner, token: str = "abc") -> Path:
    """Writes a claim as a process that has just made it, and is silent since."""
    folder.mkdir(exist_ok=True)
    (folder / number).write_text(json.dumps({"owner": asdict(owner), "token": token, "state": "held"}))
    return folder / number


def test_a_silent_owner_that_is_seen_to_live_keeps_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LOST_WRITER_SECONDS", -1.0)
    write_claim(tmp_path / "claims", "1", Owner.current())
    looks = count()
    with claimed(tmp_path / "claims", lambda: next(looks) == 5) as mine:
        assert mine is None


def test_work_done_between_the_look_and_the_claim_is_not_done_again(tmp_path: Path) -> None:
    answers = iter([False, True])
    with claimed(tmp_path / "claims", lambda: next(answers)) as mine:
        assert mine is None
    assert not list((tmp_path / "claims").iterdir())


def test_of_two_claims_of_one_number_the_first_stays(tmp_path: Path) -> None:
    folder = Below(tmp_path, ("claims",))
    first = claim_file.make(folder, 1)
    assert first and claim_file.make(folder, 1) is None
    assert claim_file.latest(folder) == first


@pytest.mark.parametrize("token", ["../elsewhere", ".", ""])
def test_a_claim_whose_token_is_a_path_is_over(tmp_path: Path, token: str) -> None:
    write_claim(tmp_path / "claims", "1", Owner.current(), token)
    found = claim_file.latest(Below(tmp_path, ("claims",)))
    assert found and found.is_over and found.token == "unknown"


def test_only_numbers_as_dlio_writes_them_are_claims(tmp_path: Path) -> None:
    for name in ("007", "\u0663", "-1", "1x"):
        write_claim(tmp_path / "claims", name, Owner.current())
    assert claim_file.latest(Below(tmp_path, ("claims",))) is None
    write_claim(tmp_path / "claims", "1", Owner.current())
    found = claim_file.latest(Below(tmp_path, ("claims",)))
    assert found and found.number == 1, "an odd name hides no claim"


def is_renewed(claim: Path) -> None:
    """Makes a claim an old one, and waits until it is renewed."""
    os.utime(claim, (1, 1))
    deadline = time.monotonic() + 30
    while claim.stat().st_mtime == 1:
        assert time.monotonic() < deadline, "nobody renews it"
        time.sleep(0.005)


def test_a_claim_is_renewed_while_its_owner_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.001)
    with claimed(tmp_path / "claims", lambda: False) as mine:
        assert mine
        is_renewed(tmp_path / "claims/1")


def test_a_claim_is_renewed_after_a_failure_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.001)
    tries, touch = count(), OpenFolder.touch

    def failing(folder: OpenFolder, name: str) -> None:
        if next(tries) == 0:
            raise OSError(errno.EIO, "Input/output error")
        touch(folder, name)

    monkeypatch.setattr(OpenFolder, "touch", failing)
    with claimed(tmp_path / "claims", lambda: False) as mine:
        assert mine
        is_renewed(tmp_path / "claims/1")


def test_a_stale_handle_while_another_works_is_an_error_of_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 10042 of version 3 of the simulator, with all faults: a traceback ended a stage that waited for another."""

    def stale(folder: Below) -> OpenFolder:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Below, "open", stale)
    with pytest.raises(StorageError, match=r"cannot access the claims in .*claims: Stale file handle"):
        claim_file.modified(Below(tmp_path, ("claims",)), 1)


def test_a_claim_in_force_is_not_forgotten(tmp_path: Path) -> None:
    with claimed(tmp_path / "claims", lambda: False), OpenFolder.at(tmp_path / "claims") as opened:
        forget(opened)
        assert opened.names() == ["1"]
    write_claim(tmp_path / "claims", "2", replace(Owner.current(), started=1))
    with OpenFolder.at(tmp_path / "claims") as opened:
        forget(opened)
        assert opened.names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a claim to another user")
def test_claims_of_others_than_the_folders_owner_stay(tmp_path: Path) -> None:
    os.chown(write_claim(tmp_path / "claims", "1", replace(Owner.current(), started=1)), 2001, 2001)
    with OpenFolder.at(tmp_path / "claims") as opened:
        forget(opened)
        assert opened.names() == ["1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a claim to another user")
def test_a_claim_of_another_user_is_in_force_by_what_no_user_can_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a process of root's that runs, and its time is in the future."""
    claim = write_claim(tmp_path / "claims", "1", Owner.current())
    os.chown(claim, 2001, 2001)
    with OpenFolder.at(tmp_path / "claims") as opened:
        assert holder_in(opened) == Owner.current()
        now = time.time()
        os.utime(claim, (now + 86400, now + 86400))
        monkeypatch.setattr(world, "wall", lambda: now + 3600)
        assert holder_in(opened) is None


class _Interrupted(BaseException):
    """Ends the owner as an interrupt does."""


@pytest.mark.parametrize(
    "end, expected", [(_Interrupted(), "did the work"), (OSError(28, "No space left on device"), "errno 28")], ids=str
)
def test_what_ends_an_owner_reaches_the_thread_that_waits(tmp_path: Path, end: BaseException, expected: str) -> None:
    looks, found = count(), list[str]()

    def wait() -> None:
        try:
            with claimed(tmp_path / "claims", lambda: next(looks) < 0) as mine:
                found.append("did the work" if mine else "was done")
        except StorageError as error:
            found.append(f"errno {error.errno}")

    waiting = threading.Thread(target=wait)
    with pytest.raises(type(end)), claimed(tmp_path / "claims", lambda: False):
        waiting.start()
        deadline = time.monotonic() + 60
        while next(looks) < 8 and time.monotonic() < deadline:  # both count: it has looked, and waits
            time.sleep(0.02)
        raise end
    waiting.join(60)
    assert found == [expected]
