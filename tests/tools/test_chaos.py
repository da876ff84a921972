"""The chaos suite: a minute of it passes, it ends in time, and its oracle detects faults."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlio.dataset.manifest import NAME
from dlio.stage.copies.blocks import BLOCK_BYTES, Blocks
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from tests.helpers.rounds import NOTHING_IS_SKIPPED
from tests.helpers.staging import write_dataset
from tools.chaos import oracle
from tools.chaos.__main__ import all_acts, missing, summary
from tools.chaos.linux import NEEDS
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
    assert not (NOTHING_IS_SKIPPED and left_out), f"install what .ci/tools has: {left_out} cannot be played"


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
    assert re.search(r"^\d+ acts, 0 violated, 0 left out$", said, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_the_summary_names_what_was_left_out_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(NEEDS, "faketime", lambda: False)
    lacks = missing({name: all_acts()[name] for name in ("clock_jumps", "crowd")})
    assert summary(Counter({("crowd", "held"): 2}), lacks) == 0
    said = "     2 crowd held\nleft out: clock_jumps needs faketime\n2 acts, 0 violated, 1 left out\n"
    assert capsys.readouterr().out == said
    assert summary(Counter(), lacks) == 1, "nothing was played"


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


def test_a_block_marked_before_its_bytes_is_seen(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "source", [3 * BLOCK_BYTES])
    live, file = LiveFolder(StagedFolder(tmp_path / "local", manifest.content_id)), manifest.shards[0].files[0]
    live.blocks(file).parent.mkdir(parents=True)
    whole = (manifest.root / file.name).read_bytes()
    live.unfinished(file).write_bytes(whole[:BLOCK_BYTES].ljust(file.num_bytes, b"\0"))
    with closing(Blocks.create(live.blocks(file), file.num_bytes)) as blocks:
        blocks.set(0, BLOCK_BYTES)
        oracle.check_blocks(live, manifest)
        blocks.set(0, 2 * BLOCK_BYTES)
        with pytest.raises(Violation, match=rf"wrong bytes in 0-{2 * BLOCK_BYTES}, marked as present"):
            oracle.check_blocks(live, manifest)


def test_a_source_that_flips_bits_spares_the_manifest(tmp_path: Path) -> None:
    pytest.importorskip("mfusepy")
    from tools.chaos.failing_source import FailingSource

    options = argparse.Namespace(
        folder=tmp_path, fail="", counts=None, most=None, lists=None, latency_ms=0, bandwidth=0
    )
    source, fault = FailingSource(options, tmp_path / "fault", 1), tmp_path / "fault"
    for name, num_flipped in (("shard-0", 1), (NAME, 0)):
        (tmp_path / name).write_bytes(bytes(100))
        fault.write_text("flips 1.0")
        source.open(f"/{name}", info := SimpleNamespace())
        assert int.from_bytes(source.read(f"/{name}", 100, 0, info)).bit_count() == num_flipped
        fault.unlink()
        assert source.read(f"/{name}", 100, 0, info) == bytes(100)
        source.release(f"/{name}", info)


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
