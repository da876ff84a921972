"""Which agent the processes of a job use, and what they report about it."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.cli import stage as stage_verbs
from dlio.cluster.topology import Topology
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import StorageError
from dlio.io.arrivals import NoRoomError
from dlio.io.filesystems import FileSystem
from dlio.loaders import stats as loader_stats
from dlio.locking.owner import Owner
from dlio.stage.choose import choice
from dlio.stage.client import filling, launch
from dlio.stage.client.client import Client
from dlio.stage.client.start import ensure_agent
from dlio.stage.client.status import in_one_word, in_words, status_from
from dlio.stage.copies import lease
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import AgentRecord, LiveFolder
from dlio.stage.meeting.peer import MOST_TEXT, Peer, shortened
from dlio.stage.meeting.peer import shown as shown_record
from dlio.stage.planning.job import Options
from dlio.stage.protocol import wire
from dlio.stage.protocol.unix import UnixListener
from tests.helpers.live import client_of, eventually, is_complete, open_to_nodes, prepared, task, working


def test_outside_a_scheduler_an_agent_killed_long_ago_was_another_jobs(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with working(task(source.root, tmp_path / "dest", strategy="partition")) as node:
        live, record = LiveFolder(node.folder), LiveFolder(node.folder).agent()
        assert record
    live.make()
    live.keep_task(task(source.root, tmp_path / "dest", strategy="partition").to_json())
    live.write_record(replace(record, owner=replace(record.owner, started=1)))
    with pytest.raises(StorageError, match="it ended before it was ready"):
        filling.find_filling(node.folder, source.root)
    two_days_ago = time.time() - 2 * 86400
    for path in (live.path / "agent.json", live.path):
        os.utime(path, (two_days_ago, two_days_ago))
    assert filling.find_filling(node.folder, source.root) is None


def test_who_reads_a_copy_hears_that_its_agent_has_no_room_to_start_again(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set is then read in place, though it is at a URL."""

    def no_room(*given: object, **more: object) -> None:
        raise StorageError(errno.ENOSPC, "no room")

    monkeypatch.setattr(launch, "agent", no_room)
    with working(given := task(source.root, tmp_path / "dest")) as node:
        pass
    (node.folder.path / NAME).unlink(missing_ok=True)
    live = LiveFolder(node.folder)
    live.make()
    live.keep_task(given.to_json())
    with pytest.raises(NoRoomError, match=r"no room: .* is read where it is"):
        filling.find_filling(node.folder, source.root)


def test_a_cache_is_filled_by_the_agent_that_this_job_has_there(source: Manifest, tmp_path: Path) -> None:
    with working(task(source.root, tmp_path / "dest", strategy="partition")) as node:
        LiveFolder(node.folder).write_record(AgentRecord(Owner.current(), "socket", 0, 1))
        assert ensure_agent(source.root, tmp_path / "dest") == node.folder


def test_an_agent_that_ended_too_soon_is_named(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _, folder = prepared(task(source.root, tmp_path / "dest"))
    monkeypatch.setattr(filling, "ensure_agent", lambda *_: folder)
    with pytest.raises(StorageError, match=r"ended before .* was complete: see "):
        filling.cached(job.manifest.root, tmp_path / "dest")


def test_an_agent_that_hangs_is_named_and_no_other_is_started(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "STALL_SECONDS", 0.1)
    live = LiveFolder(prepared(task(source.root, tmp_path / "dest"))[2])
    live.staged.path.mkdir(parents=True)
    live.make()
    silent = UnixListener(live)
    with silent.listening:
        live.write_record(AgentRecord(Owner.current(), silent.where, 0, 1))
        client = Client(live.staged, lambda: pytest.fail("another agent was started"))
        for connected in (client._connected, lambda: pytest.fail("it was asked again")):
            monkeypatch.setattr(client, "_connected", connected)
            with pytest.raises(StorageError, match=f"does not answer: .*: end process {os.getpid()}, then stage again"):
                client.stat()
            monkeypatch.setattr(client, "_hangs_until", client._hangs_until + 60)  # a busy machine may be slow


def test_rank_0_sees_how_far_staging_is(
    source: Manifest,
    tmp_path: Path,
    gate: tuple[threading.Event, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(loader_stats, "FIRST_SECONDS", 0.0)
    stats = {"disk_bytes": 1000, "peer_bytes": 0, "source_bytes": 2000, "wait_seconds": 0.0}
    with working(task(source.root, tmp_path / "dest")) as node:
        LiveFolder(node.folder).write_record(AgentRecord(Owner.current(), "socket", 0, 1))
        found = filling.find_filling(node.folder, source.root)
        assert found
        with loader_stats.staging_shown([found], lambda: (0, 1), lambda: stats):
            eventually(lambda: " of 50.3 MB, " in caplog.text)
        gate[0].set()
        eventually(lambda: is_complete(node))
        node.publish()
        assert found.progress() == ""
        assert filling.cached(source.root, tmp_path / "dest")[1] is None  # all is here: its agent serves other nodes
    assert "; read 1.0 kB here, 0 B at other nodes, 2.0 kB at the source; waited 0 of 0 s" in caplog.text


def test_a_copy_is_told_of_by_its_source_finished_or_not_if_it_names_one(source: Manifest, tmp_path: Path) -> None:
    staged = StagedFolder(tmp_path / "dest", dlio.stage(source.root, tmp_path / "dest").root.name)
    assert [found["path"] for found in status_from(str(source.root), tmp_path / "dest")] == [str(staged.path)]
    (staged.path / NAME).unlink()
    (found,) = status_from(str(source.root), tmp_path / "dest")
    assert in_one_word(found).startswith("unfinished")
    staged.marker.write_text(f'{{"copy":"{staged.copy}"}}')
    assert status_from(str(source.root), tmp_path / "dest") == []


def test_what_a_hundred_nodes_complain_of_is_cut_between_nodes(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In JSON a character of a text can have six bytes, so that not all of it fits into an answer."""
    owner, text = Owner.current(), "\x01" * MOST_TEXT
    lost = [Peer(rank, ("127.0.0.1", 9), owner, False, 0, 1, waiting_for=text) for rank in range(1, 100)]
    with open_to_nodes(source.root, tmp_path / "dest", monkeypatch) as node, closing(client_of(node)) as client:
        monkeypatch.setattr(node.meeting, "told", lambda: [(peer, 7) for peer in lost])
        shown = client.stat()["nodes"]
    assert [each["node"] for each in shown] == list(range(len(shown))) and 30 < len(shown) < 100
    assert shown[-1]["waiting_for"] == text
    words = list(map(in_words, map(shown_record, shown)))
    assert "ago" not in words[0] and words[1].endswith(f", as it was 7 seconds ago, waits: {text}")


def test_a_long_problem_keeps_its_beginning_and_its_reason() -> None:
    problem = f"cannot create /{'folder/' * 60}shard-00000.bin: No space left on device"
    cut = shortened(problem)
    assert (
        len(cut) == MOST_TEXT and cut.startswith("cannot create /folder/") and cut.endswith("No space left on device")
    )
    assert shortened("No space left on device") == "No space left on device"


def test_who_waits_hears_what_the_agent_keeps_and_not_what_would_be_chosen(
    source: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with working(task(source.root, tmp_path, cache_bytes=3_000_000, options=Options(mode=0o644))) as node:
        background = ["stage", str(source.root), str(tmp_path), "--background"]
        for asked, option, given in (
            (["--cache-size", "1M"], "cache size", "3000000"),
            (["--strategy", "replicate", "--mode", "640"], "mode", "644"),
            (["--strategy", "broadcast"], "strategy", "replicate"),
        ):
            assert main([*background, *asked]) == 2
            assert f"has another {option}, {given}: " in capsys.readouterr().err
            with monkeypatch.context() as other:
                other.setenv("PBS_JOBID", f"{option}.pbs")
                assert main([*background, *asked]) == main(background) == 0
            assert f"is filled for another job, with another {option}, which stays" in caplog.text
        assert caplog.text.count("which stays") == 3  # not to those that ask for nothing
        assert all(each.job for each in lease.leases(node.folder))  # who was refused leases nothing
        assert main(background) == main([*background, "--cache-size", "3000000"]) == 0
        monkeypatch.setattr(Topology, "from_env", lambda: Topology(0, 2, 0, 1, 0, 2))
        monkeypatch.setattr(choice, "room", lambda _: FileSystem("xfs", "/", 1, None))
        assert main(["stage", str(source.root), str(tmp_path), "--wait"]) == 4
    assert "is a cache of" in capsys.readouterr().err


def test_a_second_copy_by_another_strategy_is_refused_or_told_and_none_that_fails_is_leased(
    source: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "away"))  # so no agent starts
    parts = ["stage", str(source.root), str(tmp_path), "--background", "--strategy", "partition"]
    with working(task(source.root, tmp_path)) as node:
        assert main(parts) == 2
        assert f"{node.folder.path} has another strategy, replicate: leave the strategy out" in capsys.readouterr().err
        assert main([*parts[:-2], "--mode", "640"]) == 2
        assert f"{node.folder.path} has another mode, the source's: leave" in capsys.readouterr().err
        monkeypatch.setenv("PBS_JOBID", "1.pbs")
        assert main(parts) == 4
        assert f"{node.folder.path} is filled for another job, with another strategy, which stays, and " in caplog.text
        assert list((tmp_path / "dlio/.leases").iterdir()) == []
        parts.remove("--background")
        assert main(parts) == 0 and f"{node.folder.path} is being filled, and " in caplog.text
    caplog.clear()
    assert main(parts) == 0 and not caplog.text


def test_a_complete_copy_may_be_asked_for_by_any_strategy(source: Manifest, tmp_path: Path) -> None:
    words = ["stage", str(source.root), str(tmp_path), "--quiet"]
    assert main(words) == 0
    with working(task(source.root, tmp_path)):
        assert main([*words, "--background", "--strategy", "broadcast"]) == 0


def test_who_waits_keeps_what_the_user_asks_and_takes_the_rest_from_the_agent(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's strategy may lie where only its starter looked."""
    (tmp_path / "nearby").mkdir()
    (tmp_path / "nearby/plans.py").write_text("from dlio.stage.strategies.replicate import *\n")
    found, given = list[Options](), task(source.root, tmp_path / "dest", options=Options(copies=3, mode=0o600))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def staged(args: object, topology: Topology, options: Options, *, watch: bool) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(stage_verbs, "_stage", staged)
    with working(given) as node:
        theirs = replace(given, strategy="nearby.plans", modules=[str(tmp_path)])
        LiveFolder(node.folder).keep_task(theirs.to_json())
        assert main(["stage", str(source.root), str(tmp_path / "dest"), "--wait", "--mode", "640"]) == 0
    assert found == [replace(given.options, mode=0o640)]
