"""What each node reads, receives and writes when a data set is staged: arrays over the nodes, from the pure plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.manifest import Manifest

Array = NDArray[np.float64]
THREADS = 12  # by which a node reads; they hide some ms of each read


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a data set's parts.

    Attributes:
        shards: int64[num_shards], the bytes of each shard.
        num_files: int64[num_shards], the files of each that are not empty: no other is opened.
        files: int64[num_files], the bytes of each file, in order.
    """

    shards: NDArray[np.int64]
    num_files: NDArray[np.int64]
    files: NDArray[np.int64]

    @classmethod
    def of(cls, manifest: Manifest) -> Sizes:
        """Returns the sizes of a data set."""
        shards = np.array([shard.num_bytes for shard in manifest.shards], np.int64)
        num_files = np.array([sum(file.num_bytes > 0 for file in shard.files) for shard in manifest.shards], np.int64)
        files = np.array([file.num_bytes for shard in manifest.shards for file in shard.files], np.int64)
        return cls(shards, num_files, files)

    @classmethod
    def of_one_file_each(cls, shards: NDArray[np.int64]) -> Sizes:
        """Returns the sizes of shards that are one file each."""
        return cls(shards, (shards > 0).astype(np.int64), shards)


@dataclass(frozen=True, slots=True)
class Flows:
    """The bytes that staging moves.

    Attributes:
        read: float64[num_nodes], bytes that each node reads from the source.
        opens: float64[num_nodes], files that it opens there.
        received: float64[num_nodes], bytes that others send to it; it sends as many.
        landed: float64[num_nodes], bytes that it writes to its own storage, or back to the source.
        threads: the files or blocks that a node reads at a time.
        ring: successive nodes that pass data on in a ring; then all nodes go on together, in rounds. 0 if each goes on
            for itself.
        returns: whether `landed` is written to the source, and not to the nodes' storage.
    """

    read: Array
    opens: Array
    received: Array
    landed: Array
    threads: int
    ring: int = 0
    returns: bool = False


def flows_alone(read: Array, opens: Array, threads: int, *, returns: bool = False) -> Flows:
    """Returns the flows of nodes that each write what they read; the arrays are those of `Flows`."""
    return Flows(read, opens, np.zeros_like(read), read, threads, returns=returns)


def totals(owners: NDArray[np.int64], amounts: NDArray[np.int64], num_nodes: int) -> Array:
    """Returns float64[num_nodes], the sum of the amounts whose owner each node is."""
    sums: Array = np.bincount(owners, weights=amounts, minlength=num_nodes).astype(np.float64)
    return sums
