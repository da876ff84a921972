"""Root's `clean` and `verify --staged` end in time, whatever other users have on the node."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.io import world
from dlio.locking.owner import Owner
from dlio.rights import as_owner as as_owner_module
from dlio.rights.as_owner import as_owner, in_time
from dlio.rights.patience import Patience
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import SOCKET, AgentRecord, LiveFolder
from dlio.stage.upkeep import scrub as scrub_module
from dlio.stage.upkeep.clean import clean
from dlio.stage.upkeep.scrub import scrub
from tests.helpers.forked import Forked, wait_for
from tests.helpers.slow_source import slow_mounts
from tests.helpers.staging import MiB
from tests.helpers.users import ALICE, BOB, as_user, given_to_bob, marked

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
    pytest.mark.timeout(60),
]
CAROL = 2003
NUM_PLANTED = 50
_PR_CAPBSET_DROP, _CAP_SYS_PTRACE = 24, 19  # linux/prctl.h, linux/capability.h


@contextmanager
def stubborn_process() -> Iterator[Owner]:
    """Gives a process of Bob's that does not end by SIGTERM."""
    reader, writer = os.pipe()

    def ignore() -> None:
        os.setuid(BOB)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, b"ready")
        while True:
            signal.pause()

    process = Forked(ignore)
    try:
        os.read(reader, 5)
        me = Owner.current()
        started = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        yield Owner(me.node, me.namespace, process.pid, started)
    finally:
        process.kill()
        os.close(reader)
        os.close(writer)


def plant(dest: Path, number: int, agent: Owner) -> Path:
    """Makes a copy of Bob's that names an agent."""
    copy = marked(dest / "dlio" / f"{number:032x}")
    (copy / ".dlio" / "live").mkdir(mode=0o700)
    LiveFolder(StagedFolder(dest, copy.name)).write_record(AgentRecord(agent, SOCKET, node=0, nodes=1))
    given_to_bob(copy)
    return copy


class Steps:
    """The signals that a process sends, and its pauses; the clock moves by pauses only."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._reader, self._writer = os.pipe()
        self._now, self._kill = time.monotonic(), os.kill
        patch.setattr(os, "kill", self._noted_kill)
        patch.setattr(world, "monotonic", self.monotonic)
        patch.setattr(world, "sleep", self.sleep)

    def _noted_kill(self, pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            os.write(self._writer, b"k")
        self._kill(pid, number)

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += 50 * seconds
        os.write(self._writer, b"s")

    def noted(self) -> str:
        os.close(self._writer)
        with os.fdopen(self._reader) as pipe:
            return pipe.read()


def test_all_agents_are_signalled_before_the_one_wait(
    dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unused = dlio.stage(dataset, dest).root
    with stubborn_process() as agent:
        planted = {str(plant(dest, number, agent)) for number in range(NUM_PLANTED)}
        steps = Steps(monkeypatch)
        assert cli.main(["clean", str(dest), "--json"]) == 0, "no neighbour makes an epilogue fail"
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["removed"] == [str(unused)]
    assert report["left"] == dict.fromkeys(planted, f"its agent, process {agent.pid}, has not ended")
    assert printed.err.count("dlio: left: ") == NUM_PLANTED
    kills, _, pauses = steps.noted().partition("s")
    assert kills == "k" * NUM_PLANTED and set(pauses) == {"s"}
    assert len(pauses) < 10, "one wait of 5 s for all"


def test_a_planted_copy_is_removed_once_its_process_has_ended(dest: Path) -> None:
    with stubborn_process() as agent:
        copy = plant(dest, 1, agent)
    assert clean(dest) == [copy]


def test_a_frozen_file_system_is_named_and_left(dest: Path, tmp_path: Path) -> None:
    """Bob's process, which serves the files below his copy, does not answer any more."""
    copy, others = dest / "dlio" / ("a" * 32), dest / "dlio" / ("b" * 32)
    given_to_bob(marked(tmp_path / "served"))
    copy.mkdir(parents=True)
    given_to_bob(marked(others))
    with slow_mounts(tmp_path) as mount:
        mounted = mount(tmp_path / "served")
        (server,) = _children_that_run("slow_source.py")
        subprocess.run(["mount", "--bind", mounted, copy], check=True)
        os.kill(server, signal.SIGSTOP)
        left: dict[Path, str] = {}
        try:
            assert clean(dest, deadline=0.5, left=left.__setitem__) == []
            found = list(scrub(dest, deadline=0.5))
        finally:
            os.kill(server, signal.SIGCONT)
            subprocess.run(["umount", "-l", copy], check=True)
    assert list(left) == [dest]
    assert "took longer than 0.5 s" in left[dest]
    assert [each.path for each in found] == [str(dest)]
    assert "took longer than 0.25 s" in found[0].problem
    assert clean(dest) == [others]


def _children() -> list[int]:
    return [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _children_that_run(script: str) -> list[int]:
    return [child for child in _children() if script in Path(f"/proc/{child}/cmdline").read_text()]


def test_a_removal_that_is_cut_off_is_named_and_ended_later(dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bob has millions of files; here each of his takes forever."""
    copy, unlink = given(dest, BOB, "a"), os.unlink

    def slow(name: str, **options: int) -> None:
        if name == "file":
            signal.pause()
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", slow)
    left: dict[Path, str] = {}
    assert clean(dest, deadline=1, left=left.__setitem__) == []
    assert list(left) == [copy]
    assert "it took longer than 1 s: run it again, or give a longer --deadline" in left[copy]
    monkeypatch.undo()
    clean(dest)
    assert not (dest / "dlio").exists()


def given(dest: Path, user: int, letter: str) -> Path:
    """Makes a copy of a user's with one file."""
    copy = marked(dest / "dlio" / (letter * 32))
    (copy / "file").touch()
    for path in (copy, *copy.rglob("*")):
        os.chown(path, user, user)
    return copy


class Clock:
    """A clock that moves by `pass_time`, and by 5 s at each look while a child of this process is stopped."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.sleep = 0.0, time.sleep
        patch.setattr(as_owner_module, "time", self)
        patch.setattr(as_owner_module, "_LOOK_SECONDS", 0.01)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        self.now += 5 * any(" T " in Path(f"/proc/{child}/stat").read_text() for child in _children())
        return self.now


def test_users_who_stop_a_scrub_have_one_deadline_and_hide_no_others(
    dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in (BOB, ALICE, CAROL):
        assert as_user(user, lambda: dlio.stage(dataset, dest)) == 0
    look = scrub_module._look

    def stopped(*arguments: object, **options: object) -> object:
        if os.geteuid() in (BOB, ALICE):
            os.kill(os.getpid(), signal.SIGSTOP)
        return look(*arguments, **options)

    monkeypatch.setattr(scrub_module, "_look", stopped)
    clock = Clock(monkeypatch)
    found = {Path(each.path).stat().st_uid: each.problem for each in scrub(dest)}
    end = "s: run it again, or give a longer --deadline"
    assert list(found) == [BOB, ALICE, CAROL]
    assert f"longer than 30 {end}" in found[BOB]
    assert re.search(rf"longer than 1\d(\.\d)? {end}", found[ALICE]), "half of what Bob has left"
    assert found[CAROL] == ""
    assert clock.now <= 60


def test_copies_removed_during_a_scrub_hide_no_others(dest: Path, dataset: Manifest) -> None:
    """Bob has DEST/dlio-u<uid>, which his own `dlio clean` removes at any moment."""
    mine = dlio.stage(dataset, dest).root
    own = dest / f"dlio-u{BOB}"
    given_to_bob(marked(own / "dlio" / ("b" * 32)))
    os.chown(own, BOB, BOB)
    found = scrub(dest)
    assert next(found).path == str(mine)
    shutil.rmtree(own)
    assert list(found) == []


def test_root_without_the_right_to_see_progress_has_a_deadline(dest: Path, dataset: Manifest) -> None:
    """As root in a container: the kernel hides which files another user's process reads."""
    assert as_user(BOB, lambda: dlio.stage(dataset, dest)) == 0

    def child() -> None:
        assert ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0) == 0
        (manifest,) = dest.glob("dlio*/*/manifest.jsonl")
        command = [sys.executable, "-m", "dlio", "verify", "--repair", manifest.parent]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    assert Forked(child).wait() == 0


def read_zeros(num_blocks: int) -> Iterator[int]:
    """Reads so many MiB; yields the bytes read."""
    with Path("/dev/zero").open("rb", buffering=0) as zeros:
        yield sum(len(zeros.read(MiB) or b"") for _ in range(num_blocks))


def test_work_that_goes_on_is_not_ended(dest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads 1 MiB in 40 s, where 16 KiB a second are progress."""
    clock, steps = Clock(monkeypatch), [dest / str(number) for number in range(5)]

    def work() -> Iterator[str]:
        for step in steps:
            yield step.name
            wait_for(step)
            yield from map(str, read_zeros(1))

    patience = Patience(60, 16 << 10)
    values = as_owner(BOB, work, patience)
    for step in steps:
        assert next(values) == step.name
        clock.pass_time(40)
        step.touch()
        assert next(values) == str(MiB)
    assert list(values) == []
    assert patience.seconds == 60


def test_holes_without_end_are_not_progress_without_end() -> None:
    patience = Patience(0.4, 1 << 30, 2 * MiB)
    with pytest.raises(StorageError, match=r"longer than 0\.2 s"):
        list(as_owner(BOB, lambda: read_zeros(1 << 40), patience, 1 / 2))
    assert patience.most_bytes == MiB, "the next user's are not all holes"


def test_a_user_for_whom_no_time_is_left_is_told_so() -> None:
    patience = Patience(1.0)
    patience.use(2.0)
    with pytest.raises(StorageError, match="it was left out, since what came before it took all"):
        list(as_owner(BOB, lambda: [wait_for(Path("/nowhere"))], patience))


def test_work_of_a_user_ends_after_the_value_at_which_its_time_is_over() -> None:
    def user() -> None:
        values = in_time(lambda: iter([1, 2]), Patience(1e-9))
        assert next(values) == 1
        with pytest.raises(StorageError) as caught:
            next(values)
        assert caught.value.errno == errno.ETIMEDOUT

    assert as_user(BOB, user) == 0


def test_what_a_child_logs_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:

    def work() -> Iterator[str]:
        logging.getLogger("dlio.test").warning("seen %d", 1)
        yield "done"

    assert list(in_time(work, Patience(30))) == ["done"]
    assert [(each.name, each.getMessage()) for each in caplog.records] == [("dlio.test", "seen 1")]


@pytest.mark.parametrize(
    "words", [["clean", "--deadline", "0"], ["clean", "--deadline", "soon"], ["verify", "x", "--deadline", "5"]]
)
def test_a_deadline_is_a_time_for_work_with_others(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(cli.main(words))
    assert ended.value.code == 2


def test_becoming_a_user_leaves_none_of_roots_groups() -> None:
    """A user that the system knows: of the others no groups are known."""

    nobody = pwd.getpwnam("nobody")

    def child() -> None:
        os.setgroups([0, 4, 24])
        (groups,) = as_owner(nobody.pw_uid, lambda: [os.getgroups()])
        assert sorted(groups) == sorted(os.getgrouplist("nobody", nobody.pw_gid))

    assert Forked(child).wait() == 0
