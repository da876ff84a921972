"""The chaos suite: a minute of it holds, it ends when it is told to, and its oracle sees what it is there to see."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.chaos import oracle
from tools.chaos.__main__ import all_acts
from tools.chaos.process import Process
from tools.chaos.violation import Violation

REPOSITORY = Path(__file__).parents[2]
CHAOS = [sys.executable, "-m", "tools.chaos"]


@pytest.mark.jobs
@pytest.mark.timeout(900)  # a network act waits for a lost node, and the machine may be loaded
def test_each_act_of_chaos_once_breaks_nothing() -> None:
    ran = subprocess.run([*CHAOS, "--seconds", "0", "--seed", "1371"], cwd=REPOSITORY, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    played = set(re.findall(r"^held +(\w+)", ran.stdout, re.MULTILINE))
    left_out = set(re.findall(r"^left out: (\w+) needs", ran.stdout, re.MULTILINE))
    assert played == set(all_acts()) - left_out
    assert {"kill_pack", "kill_stage", "kill_clean", "kill_readers", "crowd"} <= played


def test_an_interrupt_ends_it_with_a_summary_and_leaves_nothing(tmp_path: Path) -> None:
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    command = [*CHAOS, "--seconds", "1000", "--only", "kill_stage"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, cwd=REPOSITORY, **pipes) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("held")
        running.send_signal(signal.SIGINT)
        said, complaints = running.communicate(timeout=60)
    assert (running.returncode, complaints) == (0, "")
    assert re.search(r"^\d+ acts, 0 violated$", said, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_or_differs_is_seen(tmp_path: Path) -> None:
    for name in ("kept", "changed", "gone"):
        (tmp_path / name).write_text(name)
    before = oracle.snapshot(tmp_path)
    (tmp_path / "added").touch()
    oracle.check_unchanged(before, oracle.snapshot(tmp_path))
    (tmp_path / "changed").write_text("CHANGED")
    with pytest.raises(Violation, match=r"lost \[\], changed \['.*/changed'\]"):
        oracle.check_unchanged(before, oracle.snapshot(tmp_path))
    (tmp_path / "gone").unlink()
    with pytest.raises(Violation, match=r"lost \['.*/gone'\]"):
        oracle.check_unchanged(before, oracle.snapshot(tmp_path))


def test_a_wrong_byte_and_a_missing_file_are_seen(photos: Path, tmp_path: Path) -> None:
    import dlio

    manifest = dlio.pack(dlio.sources.open_source(photos), tmp_path / "packed", workers=1, engine="serial")
    copy = dlio.stage(manifest, tmp_path / "local").root
    oracle.check_whole(copy, manifest)
    path = copy / manifest.shards[0].files[0].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Violation, match="not the content"):
        oracle.check_copies(tmp_path / "local", manifest)
    path.unlink()
    with pytest.raises(Violation, match="lacks"):
        oracle.check_whole(copy, manifest)
    with pytest.raises(Violation, match="clean has left"):
        oracle.check_nothing_left(tmp_path / "local", [])


def started(tmp_path: Path, script: str) -> Process:
    return Process([sys.executable, "-c", script], tmp_path / "log", 0, os.environ)


@pytest.mark.parametrize(
    ("script", "seen"),
    [("raise ValueError", "traceback"), ("raise SystemExit(9)", "ended with 9"), ("import os; os.abort()", "with -6")],
)
def test_an_end_that_is_not_dlios_is_seen(tmp_path: Path, script: str, seen: str) -> None:
    process = started(tmp_path, script)
    process.wait(60)
    with pytest.raises(Violation, match=seen):
        oracle.check_end(process)


def test_a_process_that_does_not_end_is_seen_and_ended(tmp_path: Path) -> None:
    process = started(tmp_path, "import time; time.sleep(1000)")
    with pytest.raises(Violation, match="should have ended within 0 s"):
        process.wait(0.1)
    assert process.has_ended()
