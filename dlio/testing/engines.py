"""What every engine promises: the same shards, whole errors, no waiting for the dead, nothing left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME
from dlio.pack.write import ASIDE
from dlio.testing.container import content
from dlio.testing.engine_runner import SECONDS, EngineRunner, Results, finished, identities, wait_for_shards
from dlio.testing.engine_scenarios import ERRORS, outcome
from dlio.testing.images import make_image_folder

#: A format whose shards are the same bytes from any writer, and a number of workers to write it with.
PACKS = [("tfrecord", 1), ("webdataset", 3)]

_FOUND: dict[str, Results] = {}  # by the engine's name


class EngineTests:
    """The promises of `dlio.executors.Engine`; a subclass names its module in `engine_name`, or makes `engine`."""

    engine_name = ""

    @pytest.fixture
    def engine(self) -> EngineRunner:
        """The engine under test."""
        return EngineRunner(self.engine_name)

    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        """A folder of 36 PNGs in the classes cat, dog and owl."""
        make_image_folder(tmp_path / "photos", {"dog": 11, "cat": 16, "owl": 9})
        return tmp_path / "photos"

    @pytest.mark.parametrize(("name", "workers"), PACKS)
    def test_the_shards_are_the_same_whoever_writes_them(
        self, engine: EngineRunner, photos: Path, tmp_path: Path, name: str, workers: int
    ) -> None:
        if engine.address and workers != 3:
            pytest.skip("the cluster decides the number of workers, and one format is enough")
        options = ["--format", name, "--num-shards", "7", "--shuffle", "2"]
        done = engine.run(engine.pack_command(photos, tmp_path / "out", *options, workers=workers))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        dlio.pack(
            dlio.sources.image_folder(photos), tmp_path / "whole", format=name, num_shards=7, shuffle=2, engine="serial"
        )
        assert content(tmp_path / "out") == content(tmp_path / "whole")
        engine.assert_nothing_runs()

    @pytest.fixture
    def found(self, engine: EngineRunner, tmp_path: Path) -> Results:
        """The results of scenarios over one pool, one after the other; run once for each engine."""
        if engine.name not in _FOUND:
            names = ["squares", "travels", "stops", "bounded"]
            names += [] if engine.one_at_a_time else ["finishes"]  # which would wait for the first task
            _FOUND[engine.name] = engine.results(",".join(names), tmp_path)
        return _FOUND[engine.name]

    def test_every_task_gives_its_result(self, engine: EngineRunner, found: Results) -> None:
        assert found["squares"] == {"squares": [n * n for n in range(60)], "own": engine.in_caller}

    def test_errors_arrive_as_they_were_raised(self, found: Results) -> None:
        assert found["travels"] == [outcome(error) for error in ERRORS]

    def test_an_error_stops_the_run_after_what_was_out(self, found: Results) -> None:
        assert {0, 1, 2} <= set(found["stops"]["results"])
        assert len(found["stops"]["results"]) == found["stops"]["taken"] - 1 < 100

    def test_tasks_are_taken_as_they_are_needed(self, engine: EngineRunner, found: Results) -> None:
        assert found["bounded"]["done"] == 100
        assert found["bounded"]["workers"] == (1 if engine.one_at_a_time else 2)
        assert found["bounded"]["most"] <= 2 * found["bounded"]["workers"]

    def test_results_come_as_they_finish(self, engine: EngineRunner, found: Results) -> None:
        if engine.one_at_a_time:
            pytest.skip("one after the other is its contract")
        assert sorted(found["finishes"]) == list(range(9))
        assert found["finishes"][0] != 0

    def test_a_killed_worker_is_an_error_that_names_its_task(
        self, engine: EngineRunner, photos: Path, tmp_path: Path
    ) -> None:
        """And the next run keeps what is finished."""
        out = tmp_path / "out"
        first = engine.scenario("packs", tmp_path)
        if engine.in_caller or engine.launcher:  # a launcher ends all its processes at once
            assert first.returncode != 0
            assert not (tmp_path / "result.json").exists()
        else:
            result = (tmp_path / "result.json").read_text()
            assert re.match(r'\{"packs": "a worker died \(.*killed, or out of memory\) while working on', result)
            assert "shard-0000" in result.partition("while working on")[2].partition(":")[0]
        engine.assert_nothing_runs()
        assert not (out / NAME).exists()
        named = [line for line in finished(out) if line]
        kept = {file: found for file, found in identities(out).items() if any(f'"{file}"' in line for line in named)}
        dlio.pack(dlio.sources.image_folder(photos), out, num_shards=12, engine="serial")
        assert kept.items() <= identities(out).items()
        assert not (out / ASIDE).exists()
        dlio.pack(dlio.sources.image_folder(photos), tmp_path / "whole", num_shards=12, engine="serial")
        assert content(out) == content(tmp_path / "whole")

    @pytest.fixture(scope="class")
    @classmethod
    def many(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A folder of 240 small PNGs in `in`, and in `whole` what 120 shards of them are like."""
        folder: Path = tmp_path_factory.mktemp("many")
        make_image_folder(folder / "in", {"a": 120, "b": 120})
        dlio.pack(
            dlio.sources.image_folder(folder / "in"),
            folder / "whole",
            format="recordio",
            num_shards=120,
            engine="serial",
        )
        return folder

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
    def test_a_stopped_run_leaves_no_process_and_goes_on(
        self, engine: EngineRunner, many: Path, tmp_path: Path, number: signal.Signals
    ) -> None:
        if engine.ends_late and number == signal.SIGTERM:
            pytest.skip("dlio ends as at SIGINT, and starting this engine takes long")
        engine = engine.alone()
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
        if number == signal.SIGINT and not engine.launcher:
            assert run.returncode == 130
            assert message == b"dlio: interrupted; run the same command again to continue\n"
            assert engine.ends_late or not (out / ASIDE).exists()
        engine.assert_nothing_runs(but="Agent" if number == signal.SIGKILL and engine.ends_late else "nothing")
        assert not (out / NAME).exists()
        dlio.pack(dlio.sources.image_folder(many / "in"), out, format="recordio", num_shards=120, engine="serial")
        assert content(out) == content(many / "whole")
