"""What a log and a terminal show of a long run."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tqdm import tqdm

from dlio.cli import progress as progress_module
from dlio.cli.progress import Progress
from dlio.pack.shard_progress import counts, watching
from tests.helpers.images import make_image_folder


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """The log of a run whose minutes are over at once."""
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "BAR_SECONDS", 3600.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return caplog


def test_a_line_tells_samples_shards_rates_and_the_time_left(log: pytest.LogCaptureFixture) -> None:
    with Progress("pack", unit="samples", quiet=False) as progress:
        progress.start(6000, 12)
        progress.advance(500, 10**9, 1)
        progress.advance(500, 10**9, 1)
    assert [record.levelno for record in log.records] == [logging.WARNING] * 2
    number = r"[0-9]+\.[0-9]+"
    figures = f"2 of 12 shards, {number} [kMGT]?B/s, {number} samples/s, 00:.. elapsed, 00:.. left"
    assert re.fullmatch(f"pack: 1000 of 6000 samples, {figures}", log.messages[1])


def test_what_an_earlier_run_has_done_counts_for_no_rate(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
    with Progress("pack", unit="samples", quiet=False) as progress:
        progress.advance(4000, 10**9, 8)
        log.clear()
        progress.start(6000, 12)
        clock[0] = 10.0
        progress.advance(500, 5 * 10**6, 1)
    line = "pack: 4500 of 6000 samples, 9 of 12 shards, 500.0 kB/s, 50.00 samples/s, 00:10 elapsed, 00:30 left"
    assert log.messages == [line]


def test_bytes_are_told_once(log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
    with Progress("stage", unit="bytes", quiet=False) as progress:
        progress.start(4 * 10**9)
        clock[0] = 2.0
        progress.advance(10**9, 10**9)
    assert log.messages == ["stage: 1.0 GB of 4.0 GB, 500.0 MB/s, 00:02 elapsed, 00:06 left"]


def test_the_line_comes_while_a_shard_is_written(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "BAR_SECONDS", 0.001)
    with Progress("pack", unit="samples", quiet=False) as progress, watching(progress.watch) as watch:
        row = counts(watch.rows(["shard"])["shard"])
        row[:] = 300, 10**6
        progress.start(6000, 1)
        while not log.messages:
            time.sleep(0.001)
    assert re.match("pack: 300 of 6000 samples, 0 of 1 shards, ", log.messages[0])


def test_a_quiet_run_says_nothing(log: pytest.LogCaptureFixture) -> None:
    with Progress("pack", unit="samples", quiet=True) as progress:
        progress.start(2)
        progress.advance(2, 2)
    assert log.messages == []


def test_a_terminal_shows_a_bar_with_shards(tmp_path: Path) -> None:
    make_image_folder(tmp_path / "photos", {"cat": 6, "dog": 6})
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 120))
    options = ["--format", "tfrecord", "--num-shards", "3", "--engine", "serial"]
    command = [sys.executable, "-m", "dlio", "pack", tmp_path / "photos", tmp_path / "out", *options]
    subprocess.run(command, stderr=terminal, stdout=subprocess.DEVNULL, check=True)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # a closed terminal ends with an error
        while block := os.read(master, 1 << 16):
            shown += block
    os.close(master)
    assert b"100%" in shown
    assert max(map(len, re.split(r"[\r\n]+", shown.decode()))) == 118  # so that ^C fits into the row
    assert re.search(rb"12/12 \[.* samples/s, 3 of 3 shards, .*B/s\]", shown)


def test_a_terminal_that_does_not_know_its_size_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # its thread would stay
    master, terminal = pty.openpty()
    assert os.get_terminal_size(terminal) == (0, 0)
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with Progress("pack", unit="samples", quiet=False) as progress:
            progress.start(4, 2)
            progress.advance(3, 10**9, 1)
        shown = b""
        while b"3/4 [" not in shown:  # the kernel may pass on one write after the other
            shown += os.read(master, 1 << 16)
    os.close(master)
