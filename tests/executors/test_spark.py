"""Spark keeps the promises of an engine: all in one session, since to start Java and Spark takes 8 s of CPU time.

`make soak` runs the whole conformance suite over it (tests/conformance/test_engines.py).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio import executors
from dlio.dataset.manifest import NAME
from dlio.errors import StorageError
from dlio.testing.engine_runner import SECONDS, EngineRunner, wait_for_shards
from dlio.testing.engine_scenarios import ERRORS, DeadlyFolder, outcome
from dlio.testing.engines import PACKS
from tests.helpers.images import make_image_folder
from tests.helpers.packing import content
from tests.helpers.rounds import ROUNDS

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("needs Java: apt-get install openjdk-17-jre-headless", allow_module_level=True)

_SCRIPT = """
import json, sys
from pathlib import Path
import dlio
from dlio import cli, executors
from dlio.testing import engine_scenarios
from dlio.testing.engines import PACKS

folder, found = Path(sys.argv[1]), {}
with executors.open_engine("spark", 2) as pool:
    for name in ("squares", "travels", "stops", "finishes", "packs"):
        found[name] = getattr(engine_scenarios, name)(pool, folder)
    (folder / "photos/cat/0003.png").write_bytes(b"no image")
    for name, _ in PACKS:
        dlio.pack(folder / "photos", folder / name, format=name, num_shards=7, on_error="skip", engine=pool)
    (folder / "result.json").write_text(json.dumps(found))
    words = ["--engine", "spark", "--format", "recordio", "--num-shards", "120", "--quiet"]
    sys.exit(cli.main(["pack", str(folder / "many"), str(folder / "long"), *words]))
"""


@pytest.mark.jobs
def test_spark_keeps_the_promises_of_an_engine(photos: Path, tmp_path: Path) -> None:
    make_image_folder(tmp_path / "many", {"a": 120, "b": 120})
    engine = EngineRunner("spark").alone()
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path)]
    with subprocess.Popen(command, env=engine.environ(), start_new_session=True, stderr=subprocess.PIPE) as run:
        wait_for_shards(tmp_path / "long", 3, run)
        os.killpg(run.pid, signal.SIGINT)
        _, message = run.communicate(timeout=SECONDS)
    assert (run.returncode, message) == (130, b"dlio: interrupted; run the same command again to continue\n")
    engine.assert_nothing_runs()
    check_results(json.loads((tmp_path / "result.json").read_text()))
    for name, _ in PACKS:
        dlio.pack(photos, tmp_path / "whole" / name, format=name, num_shards=7, on_error="skip", engine="serial")
        assert content(tmp_path / name) == content(tmp_path / "whole" / name)
    assert not (tmp_path / "long" / NAME).exists()
    for out in ("long", "again"):
        dlio.pack(tmp_path / "many", tmp_path / out, format="recordio", num_shards=120, engine="serial")
    assert content(tmp_path / "long") == content(tmp_path / "again")


@pytest.mark.jobs
@pytest.mark.skipif(ROUNDS == 1, reason="three of Java take 30 s of CPU time: make soak runs it")
def test_a_killed_executor_is_an_error_that_names_its_task(photos: Path, tmp_path: Path) -> None:
    source = DeadlyFolder(photos, deadly="dog/0005.png", above=2)  # Spark's Python processes have their own parent
    with executors.open_engine("spark", None, "local-cluster[2,1,1024]") as pool:
        with pytest.raises(StorageError, match=r"a worker died .* while working on .*shard-0000"):
            dlio.pack(source, tmp_path / "out", num_shards=12, engine=pool)
        dlio.pack(source, tmp_path / "out", num_shards=12, engine=pool)
    dlio.pack(photos, tmp_path / "whole", num_shards=12, engine="serial")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def check_results(found: dict) -> None:
    """Checks what dlio.testing.engines.EngineTests checks."""
    assert found["squares"] == {"squares": [n * n for n in range(60)], "own": False}
    assert found["travels"] == [outcome(error) for error in ERRORS]
    assert len(found["stops"]["results"]) == found["stops"]["taken"] - 1 < 100
    assert sorted(found["finishes"]) == list(range(9)) and found["finishes"][0] != 0
    assert found["packs"].startswith("a worker died (crashed, killed, or out of memory) while working on")
    assert "shard-0000" in found["packs"].partition("while working on")[2]
