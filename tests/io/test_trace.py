"""DLIO_TRACE: spans of every thread and process in one file, which is whole whenever it is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio.images import CenterCrop
from dlio.io import trace
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.stage.client import launch

_WRITER = "import sys; from dlio.io import trace\nfor n in range(200): trace.add(f'{sys.argv[1]} {n}', 0, 1)\n"


def events(path: Path) -> list[dict]:
    """Returns the events of a trace, which may lack its end as Chrome's format allows."""
    text = path.read_text()
    assert text.startswith("[\n") and text.endswith(",\n")
    return json.loads(text[:-2] + "]")


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """Writes a trace of this process."""
    file = trace.TraceFile(str(tmp_path / "trace.json"))
    monkeypatch.setattr(trace, "_file", file)
    yield file.path
    file.close()


def test_loading_and_staging_leave_spans_by_thread(traced, photos, tmp_path):
    dlio.pack(photos, tmp_path / "packed", engine="serial")
    dlio.stage(tmp_path / "packed", tmp_path / "node")
    samples = PackedSamples(tmp_path / "packed", CenterCrop(8))
    assert len(list(Loader(ArrayBatches(samples), 8, num_workers=2))) == 5
    samples.close()
    found = events(traced)
    spans = [event for event in found if event["ph"] == "X"]
    names = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    by_thread = {(names[event["tid"]].split("_")[0], event["name"]) for event in spans}
    assert {("dlio-loader", "read"), ("dlio-loader", "decode"), ("MainThread", "wait")} <= by_thread
    assert {("MainThread", "stage"), ("dlio-fill", "fetch"), ("dlio-fill", "write copy")} <= by_thread
    assert all(event["dur"] >= 0 and event["pid"] == os.getpid() for event in spans)
    epoch = next(event for event in spans if event["name"] == "epoch")
    assert all(epoch["ts"] <= event["ts"] for event in spans if event["name"] == "decode")


def test_processes_share_a_file_and_a_kill_leaves_it_whole(tmp_path):
    environ = os.environ | {trace.VARIABLE: str(tmp_path / "%h.json")}
    endings = ["", "os.kill(os.getpid(), 9)"]
    codes = [f"import os; {_WRITER}{end}" for end in endings]
    running = [subprocess.Popen([sys.executable, "-c", code, str(n)], env=environ) for n, code in enumerate(codes)]
    assert [process.wait() for process in running] == [0, -9]
    (path,) = tmp_path.iterdir()
    spans = [event["name"] for event in events(path) if event["ph"] == "X"]
    assert sorted(spans) == sorted(f"{process} {n}" for process in range(2) for n in range(200))


def test_off_a_span_is_nothing_and_a_bad_file_ends_no_work(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(trace, "_file", None)
    assert trace.span("read") is trace.span("decode")
    assert trace._opened(str(tmp_path / "absent" / "trace.json")) is None
    assert "no trace is written" in caplog.text


def test_neither_a_link_is_followed_nor_a_pipe_waited_for(tmp_path, caplog):
    victim, link, pipe = (tmp_path / name for name in ("victim", "link", "pipe"))
    victim.write_bytes(b"[\n")
    link.symlink_to(victim)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert trace._opened(str(link)) is None and trace._opened(str(pipe)) is None
    os.close(reader)
    assert trace._opened(str(pipe)) is None  # nobody reads
    assert caplog.text.count("no trace is written") == 3 and len(list(tmp_path.iterdir())) == 3


def test_an_agent_traces_to_the_file_of_the_process_that_starts_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(trace.VARIABLE, "trace-%h.json")
    assert launch._environ()[trace.VARIABLE] == str(tmp_path / "trace-%h.json")
    monkeypatch.setenv(trace.VARIABLE, "")
    assert not launch._environ()[trace.VARIABLE]
