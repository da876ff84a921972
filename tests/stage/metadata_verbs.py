"""Calls verbs one after the other in one process, which strace watches: `metadata_verbs.py FOLDER`.

FOLDER holds `shared/images`, class folders. Before each verb a missing file is statted, whose name is the
verb's, so that the calls can be told apart.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import dlio
from dlio.cluster.topology import Topology
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader

root = Path(sys.argv[1])
packed = root / "shared" / "packed"


def begin(verb: str) -> None:
    with suppress(FileNotFoundError):
        Path(f"/verb/{verb}").stat()


def stage(dest: str, strategy: str, node: int = 0, nodes: int = 1) -> None:
    dlio.stage(packed, root / dest, strategy=strategy, topology=Topology(node, nodes, 0, 1, node, nodes))


def load(folder: Path) -> None:
    for _ in Loader(ArrayBatches(PackedSamples(folder), channels_last=True), 4):
        pass


begin("pack")
content_id = dlio.pack(root / "shared" / "images", packed, num_shards=8, format="recordio", engine="serial").content_id
begin("stage")
stage("whole", "replicate")
begin("stage again")
stage("whole", "replicate")
begin("stage a part of four")
stage("part", "partition", 1, 4)
begin("plan")
dlio.plan(packed, nodes=4096)
begin("info")
dlio.info(packed)
begin("verify")
dlio.verify(packed, workers=1)
begin("load")
load(packed)
begin("load staged")
load(root / "whole" / "dlio" / content_id)
begin("end")
