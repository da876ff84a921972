"""How agents start, one for each copy, and what follows one that ended or was killed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.io import world
from dlio.io.world import start_time
from dlio.locking import claim_file
from dlio.locking.claim import claimed
from dlio.locking.owner import Owner
from dlio.stage.client import launch, start
from dlio.stage.client.client import Client
from dlio.stage.client.filling import find_filling
from dlio.stage.client.start import ensure_agent
from dlio.stage.client.status import answer, status
from dlio.stage.copies.base_folder import open_up
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import AgentRecord, LiveFolder, end_agents
from dlio.stage.engine import __main__ as agent_main
from dlio.stage.engine.complete import Following
from dlio.stage.planning.job import NO_OPTIONS, Listeners
from dlio.stage.protocol.wire import Origin
from dlio.stage.run import run
from dlio.stage.upkeep.clean import clean
from tests.helpers.forked import Forked, wait_for
from tests.helpers.live import eventually, filled, is_complete, prepared, task, working
from tests.helpers.staging import MiB, assert_staged, damaged_files, write_dataset


def test_plain_stage_goes_on_with_what_an_agent_left(
    source: Manifest, tmp_path: Path, slow: list[tuple[int, int]]
) -> None:
    with working(task(source.root, tmp_path / "dest")) as node:
        eventually(lambda: node.store.present_bytes > 10 * MiB)
        node.fill.stop()
        present = node.store.present_bytes
    staged, summary = run(source.root, tmp_path / "dest")
    assert_staged(staged, source)
    assert summary.source_bytes < source.num_bytes - present / 2


def _announced(folder: StagedFolder, node: str) -> LiveFolder:
    """Returns the folder of a copy with the announcement of an agent that is not visible from here."""
    live = LiveFolder(folder)
    live.make()
    live.write_record(AgentRecord(replace(Owner.current(), node=node), "socket", 0, 1))
    return live


def test_an_agent_of_an_earlier_boot_is_over(source: Manifest, tmp_path: Path, ended: list[StagedFolder]) -> None:
    folder = prepared(task(source.root, tmp_path / "dest"))[2]
    open_up(folder.dest)
    ended.append(folder)
    folder.path.mkdir(parents=True, mode=0o700)
    host = Owner.current().node.partition("/")[0]
    live = _announced(folder, f"{host}/another-boot")
    assert live.agent() is None
    assert ensure_agent(source.root, tmp_path / "dest") == folder
    eventually(folder.has_manifest)
    assert damaged_files(folder.path, source) == []


@pytest.mark.parametrize("asked", [dlio.stage, ensure_agent, status], ids=["stage", "background", "status"])
def test_an_agent_of_another_version_is_refused_and_can_be_ended(
    source: Manifest, tmp_path: Path, asked: Callable[[object, Path], object]
) -> None:
    """It could not read what this one writes; it holds the copy's claim."""
    folder = prepared(task(source.root, tmp_path / "dest"))[2]
    open_up(folder.dest)
    folder.path.mkdir(mode=0o700)
    with subprocess.Popen(["sleep", "600"]) as other:
        live = _announced(folder, Owner.current().node)
        owner = replace(Owner.current(), pid=other.pid, started=start_time(other.pid))
        record = {"version": 4, "owner": asdict(owner), "socket": "socket", "node": 0, "nodes": 1, "may_be_ended": True}
        (live.path / "agent.json").write_text(json.dumps(record))
        with (
            claimed(folder.claims, lambda: False),
            pytest.raises(StorageError, match="whose live folders have the version 4, not 5: wait"),
        ):
            asked(source.content_id if asked is status else source.root, tmp_path / "dest")
        assert end_agents([live]) == {}
    assert other.returncode == -signal.SIGTERM


def test_an_agent_of_another_container_lives_while_its_heart_beats(tmp_path: Path) -> None:
    folder = StagedFolder(tmp_path, "copy")
    folder.path.mkdir(parents=True)
    live = _announced(folder, "elsewhere/boot")
    assert live.agent() is not None
    os.utime(live.path / "agent.json", (0, 0))
    assert live.agent() is None
    live.beat()
    assert live.agent() is not None


def test_a_process_that_gets_nothing_and_does_not_answer_is_not_awaited_forever(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now = prepared(task(source.root, tmp_path / "dest"))[2], [1000.0]
    folder.path.mkdir(parents=True)
    wanted = files_of(source.shards)
    monkeypatch.setattr(world, "monotonic", lambda: now[0])
    with closing(Following(folder, wanted, Listeners())) as following:
        now[0] += 1
        for file in wanted[:2]:
            for seconds in (601, 1):
                assert not following.is_done()
                now[0] += seconds
            (folder.path / file.name).write_bytes((source.root / file.name).read_bytes())
        assert not following.is_done()
        now[0] += 601
        assert not following.is_done()
        now[0] += 1
        assert not following.is_done()
        now[0] += 601
        with pytest.raises(StorageError, match=r"nothing has come for 601 s, .*: no agent runs; .*: stage again"):
            following.is_done()


def test_a_second_starter_becomes_the_agent_when_the_first_ends(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder]
) -> None:
    folder = prepared(task(source.root, tmp_path / "dest"))[2]
    ended.append(folder)
    open_up(folder.dest)
    starter = threading.Thread(target=ensure_agent, args=(source.root, tmp_path / "dest"))
    with pytest.raises(KeyboardInterrupt), claimed(folder.claims, lambda: False):
        starter.start()
        time.sleep(1.5)
        assert starter.is_alive() and LiveFolder(folder).agent() is None
        raise KeyboardInterrupt
    starter.join()
    assert LiveFolder(folder).agent() or folder.has_manifest()


def test_an_agent_that_is_asked_for_joins_a_plain_stage(source: Manifest, tmp_path: Path) -> None:
    """Loaders train from the process of the plain stage, and it reports how far it is."""
    dest, go_on = tmp_path / "dest", tmp_path / "go on"
    stager = Forked(lambda: dlio.stage(source, dest, strategy="replicate", report=lambda _: wait_for(go_on)))
    folder = prepared(task(source.root, dest))[2]
    eventually(lambda: LiveFolder(folder).agent() is not None)
    assert ensure_agent(source.root, dest) == folder
    agent = LiveFolder(folder).agent()
    assert agent and agent.owner.pid == stager.pid
    (copy,) = status(source.content_id, dest)
    assert not copy["is_complete"] and copy["nodes"][0]["total_bytes"] == source.num_bytes
    with closing(Client(folder)) as client:
        go_on.touch()
        assert client.need(15, [(0, 5)]) in Origin
    assert stager.wait() == 0
    assert LiveFolder(folder).agent() is None and not LiveFolder(folder).path.exists()


def test_a_plain_stage_goes_on_when_the_one_it_waits_for_is_killed(
    source: Manifest, tmp_path: Path, slow: list[tuple[int, int]]
) -> None:
    dest = tmp_path / "dest"
    killed = Forked(lambda: dlio.stage(source, dest, strategy="replicate"))
    folder = prepared(task(source.root, dest))[2]
    live = LiveFolder(folder)
    eventually(lambda: live.present_bytes(files_of(source.shards)) > 10 * MiB)
    killed.kill()
    present = live.present_bytes(files_of(source.shards))
    staged, summary = run(source.root, dest)
    assert_staged(staged, source)
    assert summary.source_bytes <= source.num_bytes - present


def test_a_starter_waits_for_the_one_before_it_no_longer_than_said(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = task(source.root, tmp_path / "dest")
    folder = prepared(given)[2]
    open_up(folder.dest)
    monkeypatch.setattr(agent_main, "START_SECONDS", 0.1)
    with claimed(folder.claims, lambda: False), pytest.raises(StorageError, match="is not ready after"):
        agent_main.work(given, print)


def test_a_process_whose_claim_is_over_touches_nothing_of_its_successor(source: Manifest, tmp_path: Path) -> None:
    """It was stopped before it began, so long that another has begun."""
    given = task(source.root, tmp_path / "dest")
    folder = prepared(given)[2]
    open_up(folder.dest)
    claim = claim_file.make(folder.claims, 1)
    assert claim and claim_file.make(folder.claims, 2)
    folder.begin(str(source.root))
    with (
        pytest.raises(StorageError, match="is filled by another process, which counted this one"),
        filled(given, claim),
    ):
        pass
    assert LiveFolder(folder).agent() is None and not list(folder.path.glob("*.bin"))


def test_an_agent_that_is_started_again_does_what_was_asked(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[object, ...], dict[str, Any]]] = []
    monkeypatch.setattr(start, "ensure_agent", lambda *given, **more: asked.append((given, more)))
    dest, options = tmp_path / "dest", replace(NO_OPTIONS, copies=2, mode=0o640, allow_shared=True)
    with working(task(source.root, dest, cache_bytes=4 * MiB, options=options)) as node:
        live = LiveFolder(node.folder)
        live.write_record(AgentRecord(Owner.current(), "socket", 0, 1))
        filling = find_filling(node.folder, "elsewhere")
        assert filling and (live.path / "task.json").stat().st_mode & 0o777 == 0o600
        restart = pickle.loads(pickle.dumps(filling)).__reduce__()[1][2]
        restart()
    more = {"strategy": "replicate", "options": options, "cache_bytes": 4 * MiB}
    assert asked == [((str(source.root), dest), more)]


def test_a_killed_agent_is_followed_by_one_that_goes_on(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder]
) -> None:
    dest = tmp_path / "dest"
    folder = ensure_agent(source.root, dest)
    ended.append(folder)
    if agent := LiveFolder(folder).agent():
        os.kill(agent.owner.pid, signal.SIGKILL)
        eventually(lambda: agent.owner.is_alive() is False)
    assert damaged_files(folder.path, source) == []
    assert ensure_agent(source.root, dest) == folder
    assert answer(folder) or folder.has_manifest()  # on a busy machine, all may be there by now
    if answer(folder):
        with closing(Client(folder, restart=lambda: ensure_agent(source.root, dest))) as client:
            assert client.need(15, [(0, 5)]) in Origin
    eventually(folder.has_manifest)
    end_agents([LiveFolder(folder)])
    assert_staged(dlio.stage(source.root, dest), source)


@pytest.mark.parametrize("strategy", ["replicate", "partition"])
def test_only_a_part_needs_its_killed_agent(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder], monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    folder = ensure_agent(source.root, tmp_path / "dest", strategy=strategy)
    ended.append(folder)
    agent = LiveFolder(folder).agent()
    assert agent
    os.kill(agent.owner.pid, signal.SIGKILL)
    eventually(lambda: agent.owner.is_alive() is False)
    (folder.path / NAME).unlink(missing_ok=True)  # whether it was quick or not
    monkeypatch.setattr(sys, "executable", "/bin/false")
    if strategy == "replicate":
        assert find_filling(folder, source.root) is None
    else:
        with pytest.raises(StorageError, match="it ended before it was ready"):
            find_filling(folder, source.root)


def test_many_processes_start_one_agent(source: Manifest, tmp_path: Path, ended: list[StagedFolder]) -> None:
    dest = tmp_path / "dest"
    code = (
        "import sys; from dlio.stage.client.start import ensure_agent; from dlio.stage.client.client import Client\n"
        "folder = ensure_agent(sys.argv[1], sys.argv[2]); client = Client(folder)\n"
        "client.need(0); print(folder.path)"
    )
    command = [sys.executable, "-c", code, str(source.root), str(dest)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = {process.communicate()[0] for process in running}
    copy = dest / "dlio" / source.content_id
    ended.append(StagedFolder(dest, source.content_id))
    assert printed == {f"{copy}\n"} and not any(process.returncode for process in running)
    assert (copy / ".dlio" / "live" / "agent.log").read_text().count("is ready") == 1


def test_clean_ends_the_agent_of_a_job_that_is_over(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder], job_7: None
) -> None:
    dest = tmp_path / "dest"
    folder = ensure_agent(source.root, dest)
    ended.append(folder)
    agent = LiveFolder(folder).agent()
    assert agent and status(source.content_id, dest)
    assert clean(dest, job="8") == []
    assert agent.owner.is_alive()
    assert clean(dest, job="7") == [folder.path]
    assert not agent.owner.is_alive() and list(dest.iterdir()) == []


def test_plain_stage_waits_for_the_agent(
    source: Manifest, tmp_path: Path, slow: list[tuple[int, int]], ended: list[StagedFolder]
) -> None:
    with working(task(source.root, tmp_path / "dest")) as node:
        thread = threading.Thread(target=dlio.stage, args=(source.root, tmp_path / "dest"))
        thread.start()
        eventually(lambda: is_complete(node))
        assert thread.is_alive()
    thread.join()
    assert Manifest.load(node.folder.path) == source
    assert sum(length for _, length in slow) == source.num_bytes


def _python_that_is_killed(times: int, folder: Path) -> str:
    """Returns the path of a Python whose first processes are killed at once."""
    script = folder / "python"
    script.write_text(
        f'#!/bin/bash\necho x >>"$0.runs"\n[ $(wc -l <"$0.runs") -gt {times} ] && exec {sys.executable} "$@"\n'
        "echo no memory >&2\nkill -9 $$\n"
    )
    script.chmod(0o755)
    return str(script)


def test_an_agent_that_is_killed_before_it_is_ready_is_started_again(
    source: Manifest, tmp_path: Path, ended: list[StagedFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", _python_that_is_killed(2, tmp_path))
    monkeypatch.setattr(launch, "_PAUSES", (0.0, 0.0, 0.0))
    folder = ensure_agent(source.root, tmp_path / "dest")
    ended.append(folder)
    assert (tmp_path / "python.runs").read_text() == "x\n" * 3
    eventually(folder.has_manifest)


def test_an_agent_that_is_always_killed_is_an_error(
    source: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", _python_that_is_killed(99, tmp_path))
    monkeypatch.setattr(launch, "_PAUSES", (0.0, 0.0, 0.0))
    with pytest.raises(StorageError, match=r"ended before it was ready, 3 times \(no memory\): see .*/live/agent\.log"):
        ensure_agent(source.root, tmp_path / "dest")
    assert (tmp_path / "python.runs").read_text() == "x\n" * 3


def test_an_agent_goes_on_if_the_process_that_started_it_has_ended(tmp_path: Path) -> None:
    """Nobody reads what it says then; its answer is that it is ready."""
    source = write_dataset(tmp_path / "source", [1000])
    dlio.stage(source, tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    command, given = [sys.executable, "-m", "dlio.stage.engine"], task(source.root, tmp_path).to_json()
    done = subprocess.run(command, input=given, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.stderr == ""
