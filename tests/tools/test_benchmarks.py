"""The loaders' benchmark: what it counts, and what its tables say of made-up figures."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.loaders.process_tree import cpu_seconds, descendants, memory_bytes
from benchmarks.loaders.processes import Failure
from benchmarks.loaders.table import Figures, targets, task_table
from benchmarks.loaders.tasks import TASKS, all_ways

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"


def test_every_way_says_what_it_needs_and_can_do():
    ways = all_ways()
    assert len({way.NAME for way in ways.values()}) == len(ways)
    for way in ways.values():
        assert way.PACKAGES
        assert set(way.TASKS) <= set(TASKS)
        assert callable(way.prepare)
        assert callable(way.batches)


def test_looking_at_the_ways_imports_no_peer():
    code = "import sys; from benchmarks.loaders.tasks import all_ways; all_ways(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert not loaded & {"torch", "tensorflow", "lmdb", "litdata", "nvidia", "ffcv", "cv2", "dlio"}


def test_cpu_time_and_memory_of_children_count():
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"done\n"
        assert child.pid in descendants(os.getpid())
        assert cpu_seconds() - before > 0.25
        assert memory_bytes(os.getpid()) > memory_bytes(child.pid) > 1 << 20
        child.communicate(b"\n")
    assert cpu_seconds() - before > 0.25


def test_memory_counts_what_is_touched():
    before = memory_bytes(os.getpid())
    held = np.ones(64 << 20, np.uint8)
    assert memory_bytes(os.getpid()) - before > held.nbytes / 2


@pytest.fixture
def figures() -> dict[str, Figures]:
    return {
        "dlio": Figures(cpu=1e-3, wall=5e-4, first=0.1, memory=2e8, version="dlio 1"),
        "dlio, crop-ready": Figures(cpu=5e-4, wall=2.5e-4, first=0.1, memory=2e8, version="dlio 1"),
        "slow": Figures(cpu=3e-3, wall=1e-3, first=1, memory=3e8, version="slow 1"),
        "thrifty": Figures(cpu=1.5e-3, wall=2e-3, first=1, memory=3e8, version="thrifty 1"),
    }


def test_a_table_ranks_by_cpu_time_and_names_failures(figures):
    lines = task_table(TASKS["jpeg"], figures, {"absent": Failure("No module named 'absent'")}).splitlines()
    assert [line.split(" | ")[0] for line in lines[4:] if line] == [
        "| dlio, crop-ready",
        "| dlio",
        "| thrifty",
        "| slow",
        "| absent",
    ]
    assert lines[6] == "| thrifty | thrifty 1 | 1,500.0 | 1.50 | 500 | 0.25 | 1.00 | 300 |"
    assert "No module named 'absent'" in lines[8]


def test_targets_compare_with_the_best_peer_of_each_kind(figures):
    text = targets({"jpeg": figures}, {"memory_first": 100, "memory_last": 101, "busy": 0.97, "speedup": 1.9})
    assert "crop-ready, images a CPU second / best peer's (thrifty) | 3.00; by the clock 4.00 (slow)" in text
    assert "97.0% | at least 95%" in text
    assert targets({"jpeg": {}}, {}).count("|") == 8
