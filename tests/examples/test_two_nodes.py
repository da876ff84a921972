"""The page "Two nodes on a laptop" works as shown: each shard is read from the source once, and then from disk."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from tests.helpers import documents
from tests.helpers.images import make_image_folder

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "two-nodes.md"


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """The agents end by themselves, some seconds later."""
    yield


@pytest.mark.jobs
def test_two_nodes_on_one_machine(tmp_path: Path) -> None:
    make_image_folder(tmp_path / "photos", {"cat": 60, "dog": 60})
    packed = dlio.pack(tmp_path / "photos", tmp_path / "packed" / "train", num_shards=6, engine="serial")
    script, start, look = documents.blocks(PAGE)
    (tmp_path / "two_nodes.py").write_text(script.text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "DLIO_INTERFACE": "127.0.0.1", "OMP_NUM_THREADS": "1"}

    def run(text: str) -> str:
        words = ["bash", "-ec", text]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = run(start.text.replace("29511", str(port)))
    lines = re.findall(r"^node (\d), epoch (\d): source (\d+) peer (\d+) disk (\d+)$", shown, re.MULTILINE)
    assert sorted((int(node), int(epoch)) for node, epoch, *_ in lines) == [(0, 0), (0, 1), (1, 0), (1, 1)], shown
    found = {(int(node), int(epoch)): tuple(map(int, counts)) for node, epoch, *counts in lines}
    assert sum(source for source, _, _ in found.values()) <= packed.num_bytes
    assert found[0, 1][:2] == found[1, 1][:2] == (0, 0) and found[0, 1][2] > 0
    status = run(look.text.partition(" && dlio clean")[0].replace("dlio clean node0", "true"))
    assert "node0/dlio/" in status and "complete" in status and "damaged              0" in status
    copies = [Manifest.load(copy) for copy in tmp_path.glob("node?/dlio/*/manifest.jsonl")]
    assert [copy.content_id for copy in copies] == [packed.content_id] * 2
