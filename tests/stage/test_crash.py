"""Killed at any moment, by any means: no wrong file has its final name, and the next run continues."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.cluster.liveness import LOST_WRITER_SECONDS
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.run import run
from tests.helpers.forked import Forked, run_until, wait_for
from tests.helpers.rounds import ROUNDS
from tests.helpers.staging import MiB, assert_staged, damaged_files, write_dataset


def test_killed_at_random_moments(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [60_000 + 1000 * number for number in range(12)])
    moments = random.Random(1)
    folder = tmp_path / "local" / "dlio" / source.content_id
    started = time.monotonic()
    assert Forked(lambda: dlio.stage(source, tmp_path / "trial")).wait() == 0
    usual_seconds = time.monotonic() - started
    finished = 0
    kills = 40 * ROUNDS
    for _ in range(kills):
        child = Forked(lambda: dlio.stage(source, tmp_path / "local"))
        time.sleep(moments.uniform(0, 1.5 * usual_seconds))
        child.kill()
        assert damaged_files(folder, source) == []
        if (folder / NAME).exists():
            assert_staged(dlio.stage(source, tmp_path / "local"), source)
            finished += 1
            shutil.rmtree(tmp_path / "local")
    assert_staged(dlio.stage(source, tmp_path / "local"), source)
    assert 0 < finished < kills, "the moments lie before and after the end of a copy"


def stage_until(source: Manifest, dest: Path, ready: Path, num_bytes: int) -> None:
    """Stages, and hangs once that much is written."""
    written = 0

    def hang(count: int) -> None:
        nonlocal written
        written += count
        if written >= num_bytes:
            ready.touch()
            time.sleep(1000)

    dlio.stage(source, dest, report=hang)


def test_the_next_run_reads_only_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_dataset(tmp_path / "source", [40 * MiB])
    child = Forked(lambda: stage_until(source, tmp_path / "local", tmp_path / "ready", 24 * MiB))
    wait_for(tmp_path / "ready")
    child.kill()
    assert cli.main(["stage", str(source.root), str(tmp_path / "local"), "--status"]) == 0
    ended = rf": unfinished, [\d.]+ MB of 41\.\d MB are here.*: process {child.pid} on \S+ ended without finishing it; "
    assert re.search(ended, capsys.readouterr().out)
    staged, summary = run(source, tmp_path / "local", strategy="replicate")
    assert_staged(staged, source)
    assert summary.source_bytes <= 16 * MiB  # other threads wrote until the process was killed


def test_what_a_crash_of_the_machine_left_is_not_believed(tmp_path: Path) -> None:
    """After a power loss, a file may have its length and not its content."""
    source = write_dataset(tmp_path / "source", [20 * MiB])
    child = Forked(lambda: stage_until(source, tmp_path / "local", tmp_path / "ready", 12 * MiB))
    wait_for(tmp_path / "ready")
    child.kill()
    (begun,) = (tmp_path / "local").glob("dlio/*/.dlio/live/files/shard-*.bin")
    begun.write_bytes(bytes(20 * MiB))
    staged, summary = run(source, tmp_path / "local", strategy="replicate")
    assert_staged(staged, source)
    assert 20 * MiB <= summary.source_bytes <= 28 * MiB  # up to all of it was here when the process was killed


def test_a_waiting_process_goes_on_where_the_killed_one_was(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [MiB] * 40)
    owner = Forked(lambda: stage_until(source, tmp_path / "local", tmp_path / "ready", 20 * MiB))
    wait_for(tmp_path / "ready")

    def wait_and_finish() -> None:
        staged, summary = run(source, tmp_path / "local", strategy="replicate")
        assert_staged(staged, source)
        assert 8 * MiB <= summary.source_bytes <= 20 * MiB

    heir = Forked(wait_and_finish)
    time.sleep(0.2)
    killed_at = time.monotonic()
    owner.kill()
    assert heir.wait() == 0
    assert time.monotonic() - killed_at < LOST_WRITER_SECONDS, "the owner's death was seen, not presumed"


def test_an_interrupt_leaves_a_resumable_copy(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [4 * MiB] * 4)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dlio.stage(source, tmp_path / "local", report=interrupt)
    staged, summary = run(source, tmp_path / "local", strategy="replicate")
    assert_staged(staged, source)
    assert summary.source_bytes < source.num_bytes


def test_a_terminated_command_gives_its_work_back(tmp_path: Path, slow_source: Callable[..., Path]) -> None:
    source = write_dataset(tmp_path / "source", [12 * MiB] * 4)
    slow = slow_source(source.root, "--bandwidth", "8")
    command = [sys.executable, "-m", "dlio", "stage", str(slow), str(tmp_path / "local"), "--strategy", "replicate"]
    folder = tmp_path / "local" / "dlio" / source.content_id
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        live = LiveFolder(StagedFolder(tmp_path / "local", source.content_id))
        while live.present_bytes(files_of(source.shards)) < 8 * MiB:
            time.sleep(0.01)
        running.terminate()
        assert running.wait() == 130
        assert running.stderr is not None
        assert running.stderr.read() == "dlio: interrupted; run the same command again to continue\n"
    claims = folder.parent / ".claims" / source.content_id
    assert [json.loads(path.read_text())["state"] for path in claims.iterdir()] == ["released"]
    staged, summary = run(source, tmp_path / "local", strategy="replicate")
    assert_staged(staged, source)
    assert summary.source_bytes <= source.num_bytes - 8 * MiB


STAGE = "import dlio, sys; dlio.stage(sys.argv[1], sys.argv[2])"


def traced(source: Manifest, dest: Path, *inject: str) -> subprocess.CompletedProcess[str]:
    """Stages in a process whose system calls strace tampers with."""
    if shutil.which("strace") is None or subprocess.run(["strace", "-o/dev/null", "true"]).returncode:
        pytest.skip("strace cannot trace here")
    options = [part for rule in inject for part in ("-e", f"inject={rule}")]
    calls = ",".join(rule.partition(":")[0] for rule in inject)
    command = ["strace", "-f", "-o", os.devnull, "-e", f"trace={calls}", *options]
    command += [sys.executable, "-c", STAGE, str(source.root), str(dest)]
    return subprocess.run(command, capture_output=True, text=True)


KILL_POINTS = [(call, when) for call in ("rename", "fsync", "linkat") for when in (1, 2, 3)]


@pytest.mark.parametrize(("call", "when"), [*KILL_POINTS, ("rename", 4), ("fsync", 6)])
def test_killed_in_a_chosen_system_call(tmp_path: Path, call: str, when: int) -> None:
    source = write_dataset(tmp_path / "source", [MiB, 2 * MiB, 10])
    assert run_until(call, when, lambda: dlio.stage(source.root, tmp_path / "local")) in (0, -signal.SIGKILL)
    folder = tmp_path / "local" / "dlio" / source.content_id
    assert damaged_files(folder, source) == []
    assert_staged(dlio.stage(source, tmp_path / "local"), source)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("fsync:error=EIO:when=2", "Input/output error"),
        ("rename:error=EIO:when=2", "Input/output error"),
        ("linkat:error=EPERM", "cannot claim"),
        ("flock:error=ENOSYS", ""),
        ("copy_file_range:error=EIO", ""),
    ],
)
def test_a_failing_system_call_leaves_nothing_wrong(tmp_path: Path, rule: str, said: str) -> None:
    source = write_dataset(tmp_path / "source", [MiB, 2 * MiB, 10])
    done = traced(source, tmp_path / "local", rule)
    assert (done.returncode != 0) == bool(said)
    assert said in done.stderr
    assert "StorageError" in done.stderr or not said
    assert damaged_files(tmp_path / "local" / "dlio" / source.content_id, source) == []
    assert_staged(dlio.stage(source, tmp_path / "local"), source)
