"""How many files the simulator says are opened at the source, compared with what real nodes open."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlio.errors import StorageError
from dlio.stage import simulate
from dlio.stage.planning.cost import Machine
from dlio.stage.sources import source_of
from dlio.stage.strategies import names
from tests.helpers.forked import Forked
from tests.helpers.staging import MiB, write_dataset
from tests.stage.launched import Cluster, needs_mpiexec

NODES = 3
ROOM = 1 << 40


@needs_mpiexec
@pytest.mark.parametrize("strategy", names())
def test_nodes_open_as_many_files_as_are_simulated(
    strategy: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "source", [0, 1, 5 * MiB + 3, 4 * MiB, 9 * MiB, 2 * MiB - 1, 7, 20 * MiB])
    monkeypatch.setenv("STRATEGY", strategy)
    monkeypatch.setenv("NUM_NODES", str(NODES))
    reports = cluster.run(dataset.root, NODES)
    opened = [report["opened"] for report in reports.values()]
    assert simulate(dataset, Machine(NODES, ROOM), strategy).opens == sum(map(len, opened)), opened


def test_threads_that_read_one_file_open_it_once(tmp_path: Path) -> None:
    source = source_of(write_dataset(tmp_path / "source", [4 * MiB]))
    (shard,) = source.manifest.shards
    opened: list[object] = []

    def open_slowly(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and arguments[1] is None and str(arguments[0]).endswith(".bin"):
            opened.append(arguments[0])
            time.sleep(0.1)  # as a busy server would: all threads run at that time

    def read() -> None:
        sys.addaudithook(open_slowly)
        with ThreadPoolExecutor(4) as threads:
            parts = [memoryview(bytearray(MiB)) for _ in range(4)]
            list(threads.map(lambda number: source.read_range(shard.files[0], number * MiB, parts[number]), range(4)))
        assert b"".join(parts) == (source.manifest.root / shard.files[0].name).read_bytes()
        assert len(opened) == 1, opened

    assert Forked(read).wait() == 0


def test_a_source_that_changes_between_two_ranges_is_an_error(tmp_path: Path) -> None:
    source = source_of(write_dataset(tmp_path / "source", [100]))
    (file,) = source.manifest.shards[0].files
    target = memoryview(bytearray(50))
    source.read_range(file, 0, target)
    source.read_range(file, 50, target)
    (tmp_path / "source" / file.name).write_bytes(bytes(100))
    with pytest.raises(StorageError, match="changed"):
        source.read_range(file, 50, target)
    source.close()
