"""How many files each verb opens, stats and lists on the shared file system, counted by strace and planned."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.stage.planning.flows import Sizes
from dlio.stage.strategies import Simulated, load
from dlio.testing.images import make_image_folder

SCRIPT = Path(__file__).with_name("metadata_verbs.py")
CALLS = {"openat": "opens", "newfstatat": "stats", "stat": "stats", "statx": "stats", "lstat": "stats"}
CALLS |= {"fstat": "stats", "getxattr": "stats", "getdents64": "listings"}
FILES, SHARDS = 24, 8


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Counter[str]], Manifest]:
    """The calls of each verb on files below `shared`, and the data set."""
    root = tmp_path_factory.mktemp("verbs")
    make_image_folder(root / "shared" / "images", {"cat": 16, "dog": 16})
    trace = ["strace", "-f", "-qq", "-y", "-o", str(root / "log"), "-e", "trace=%file,getdents64,fstat"]
    try:
        subprocess.run([*trace, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs strace, and the right to trace")
    subprocess.run([*trace, sys.executable, str(SCRIPT), str(root)], check=True)
    verb, calls = "", defaultdict[str, Counter[str]](Counter)
    for line in (root / "log").read_text().splitlines():
        if begun := re.search(r'"/verb/([^"]+)"', line):
            verb = begun[1]
        elif f"{root}/shared" in line and (call := re.match(r"\d+\s+(\w+)\(", line)) and call[1] in CALLS:
            calls[verb][CALLS[call[1]]] += 1
    return calls, Manifest.load(root / "shared" / "packed")


def test_one_process_opens_each_file_once_and_lists_nothing(counted: tuple[dict[str, Counter[str]], Manifest]) -> None:
    calls, manifest = counted
    assert Sizes.of(manifest).num_files.sum() == FILES
    opens = {verb: calls[verb]["opens"] for verb in calls}
    assert opens["stage"] == FILES + 1  # and the manifest
    assert opens["stage again"] == opens["plan"] == 1
    assert opens["info"] == SHARDS + 1
    assert opens["load"] <= FILES + 2 and opens["verify"] <= 2 * FILES + 1
    assert all(calls[verb]["listings"] == 0 for verb in calls if verb != "pack")
    assert calls["stage again"]["stats"] <= 6 and calls["stage"]["stats"] <= 9 * FILES
    assert not calls["load staged"]


def test_4096_nodes_open_what_the_plan_says_of_each(counted: tuple[dict[str, Counter[str]], Manifest]) -> None:
    calls, manifest = counted
    opens = {name: of_plan(name, manifest, 4) for name in ("replicate", "broadcast", "partition")}
    assert calls["stage a part of four"]["opens"] == opens["partition"][1] + 1
    assert {name: found.sum() for name, found in opens.items()} == {
        "replicate": 4 * FILES,
        "broadcast": FILES,
        "partition": FILES,
    }
    assert of_plan("partition", manifest, 4096).sum() == of_plan("broadcast", manifest, 4096).sum() == FILES


def of_plan(strategy: str, manifest: Manifest, nodes: int) -> np.ndarray:
    """Returns the files that each node opens."""
    chosen = load(strategy)
    assert isinstance(chosen, Simulated)
    return chosen.flows(Sizes.of(manifest), nodes, 1).opens
