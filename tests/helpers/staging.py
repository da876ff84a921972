"""Data sets of random bytes, and what a staged copy of one has to hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import NAME, Manifest
from dlio.io.files import digest_file
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.planning.flows import Sizes
from dlio.stage.planning.job import Job, Listeners
from dlio.stage.sources import source_of
from dlio.testing.strategies import write_dataset as write_dataset

MiB = 1 << 20


def interrupted_after(num_bytes: int) -> Listeners:
    """Returns a function that interrupts a stage, as Ctrl-C does, once more than this many bytes are reported."""
    seen = 0

    def interrupt(more: int) -> None:
        nonlocal seen
        seen += more
        if seen > num_bytes:
            raise KeyboardInterrupt

    return Listeners(report=interrupt)


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """Returns the files that have their final names and do not match their digests."""
    there = [file for shard in manifest.shards for file in shard.files if (folder / file.name).exists()]
    return [file.name for file in there if digest_file(folder / file.name, file.digest.split(":")[0]) != file.digest]


def assert_staged(staged: Manifest, source: Manifest) -> None:
    """The staged copy holds every byte, its manifest, and nothing else."""
    assert staged == source
    assert Manifest.load(staged.root) == source
    names = {file.name for shard in source.shards for file in shard.files}
    found = {str(path.relative_to(staged.root)) for path in staged.root.rglob("*") if path.is_file()}
    assert found == names | {NAME, ".dlio/copy.json"}
    assert damaged_files(staged.root, source) == []


def folder_of(staged: Manifest) -> StagedFolder:
    """Returns the folder that a staged manifest lies in."""
    return StagedFolder(staged.root.parent.parent, staged.root.name)


def one_file_each(shards: NDArray[np.int64]) -> Sizes:
    """Returns the sizes of shards that are one file each."""
    return Sizes(shards, np.ones_like(shards), shards)


def job_of(dataset: Manifest, dest: Path, topology: Topology) -> Job:
    """Returns one process's part in staging a data set."""
    return Job(source_of(dataset), dest, topology)


def node(rank: int, count: int) -> Topology:
    """Returns the topology of the only process on one of `count` nodes."""
    return Topology(rank, count, 0, 1, rank, count)


def flip(path: Path, position: int = 700) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 4
    path.write_bytes(data)
