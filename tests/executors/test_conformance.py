"""One suite over all engines, real ones, found by name: same shards, whole errors, no waiting for the dead."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, PARTIAL_NAME
from dlio.pack.write import ASIDE
from dlio.sources import image_folder
from tests.executors import job
from tests.executors.conftest import SECONDS, Engine
from tests.helpers.images import make_image_folder
from tests.helpers.packing import content

#: A format whose shards are the same bytes whoever writes them, and a number of workers to write it with.
PACKS = [("tfrecord", 1), ("recordio", 2), ("webdataset", 3)]


def finished(out: Path) -> list[str]:
    """Returns the lines of the shards that an unfinished pack has finished."""
    return (out / PARTIAL_NAME).read_text().splitlines()[1:] if (out / PARTIAL_NAME).exists() else []


def identities(out: Path) -> dict[str, tuple[int, int]]:
    """Returns what changes when a file is written again, for each file of a shard."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.glob("shard*")}


def wait_for_shards(out: Path, number: int, run: subprocess.Popen) -> None:
    deadline = time.monotonic() + SECONDS
    while len(finished(out)) < number:
        assert run.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(("name", "workers"), PACKS)
def test_the_shards_are_the_same_whoever_writes_them(engine, photos, tmp_path, name, workers):
    options = ["--format", name, "--num-shards", "7", "--shuffle", "2"]
    done = engine.run(engine.pack_command(photos, tmp_path / "out", *options, workers=workers))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    dlio.pack(image_folder(photos), tmp_path / "whole", format=name, num_shards=7, shuffle=2, engine="serial")
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    engine.assert_nothing_runs()


def test_every_task_gives_its_result(engine, tmp_path):
    found = engine.result("squares", tmp_path)
    assert found == {"squares": [n * n for n in range(60)], "own": engine.name == "serial"}


def test_errors_arrive_as_they_were_raised(engine, tmp_path):
    assert engine.result("travels", tmp_path) == [job.outcome(error) for error in job.ERRORS]


def test_an_error_stops_the_run_after_what_was_out(engine, tmp_path):
    found = engine.result("stops", tmp_path)
    assert {0, 1, 2} <= set(found["results"])
    assert len(found["results"]) == found["taken"] - 1 < 100


def test_tasks_are_taken_as_they_are_needed(engine, tmp_path):
    found = engine.result("bounded", tmp_path)
    assert found["done"] == 100
    assert found["workers"] == (1 if engine.name == "serial" else 2)
    assert found["most"] <= 2 * found["workers"]


def test_results_come_as_they_finish(engine, tmp_path):
    if engine.name == "serial":
        pytest.skip("one after the other is its contract")
    order = engine.result("finishes", tmp_path)
    assert sorted(order) == list(range(9))
    assert order[0] != 0


def test_a_killed_worker_is_an_error_that_names_its_task(engine, tmp_path):
    if engine.name == "serial":
        pytest.skip("its worker is the caller")
    done = engine.scenario("dies", tmp_path)
    if engine.name == "mpi":  # mpiexec ends all ranks at once
        assert done.returncode != 0
        assert not (tmp_path / "result.json").exists()
    else:
        assert (tmp_path / "result.json").read_text().startswith('"a worker died (killed, or out of memory) while at')
        assert " 3" in (tmp_path / "result.json").read_text().partition("while at work on")[2].partition(":")[0]
    engine.assert_nothing_runs()


def test_a_pack_whose_worker_was_killed_goes_on(engine, photos, tmp_path):
    out = tmp_path / "out"
    first = engine.scenario("packs", tmp_path)
    result = (tmp_path / "result.json").read_text() if (tmp_path / "result.json").exists() else ""
    if engine.name in ("serial", "mpi"):
        assert first.returncode != 0
    else:
        assert "while at work on shard-0000" in result
    assert not (out / NAME).exists()
    named = [line for line in finished(out) if line]
    kept = {file: found for file, found in identities(out).items() if any(f'"{file}"' in line for line in named)}
    assert engine.result("packs", tmp_path) == 36
    assert kept.items() <= identities(out).items()
    assert not (out / ASIDE).exists()
    dlio.pack(image_folder(photos), tmp_path / "whole", num_shards=12, engine="serial")
    assert content(out) == content(tmp_path / "whole")


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """A folder of 1200 small PNGs in `in`, and in `whole` what 120 shards of them are like."""
    folder = tmp_path_factory.mktemp("many")
    make_image_folder(folder / "in", {"a": 600, "b": 600})
    dlio.pack(image_folder(folder / "in"), folder / "whole", format="recordio", num_shards=120, engine="serial")
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_stopped_run_leaves_no_process_and_goes_on(engine, many, tmp_path, number):
    engine = Engine(engine.name)  # of its own processes, a Ray of its own too
    out = tmp_path / "out"
    command = engine.pack_command(many / "in", out, "--format", "recordio", "--num-shards", "120")
    with subprocess.Popen(command, env=engine.environ(), start_new_session=True, stderr=subprocess.PIPE) as run:
        wait_for_shards(out, 3, run)
        if number == signal.SIGINT:
            os.killpg(run.pid, number)  # as a terminal does
        else:
            run.send_signal(number)
        _, message = run.communicate(timeout=SECONDS)
    assert run.returncode != 0
    assert b"Traceback" not in message
    if number == signal.SIGINT and engine.name != "mpi":
        assert run.returncode == 130
        assert message == b"dlio: interrupted; run the same command again to go on\n"
        assert engine.name == "ray" or not (out / ASIDE).exists()  # Ray ends its workers later than itself
    engine.assert_nothing_runs(but="Agent" if number == signal.SIGKILL else "nothing")  # Ray's need a minute to notice
    assert not (out / NAME).exists()
    dlio.pack(image_folder(many / "in"), out, format="recordio", num_shards=120, engine="serial")
    assert content(out) == content(many / "whole")
