"""What each node reads, receives and writes when a data set is staged, and the fair rates: arrays over the nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.manifest import Manifest
from dlio.dataset.shard import files_of
from dlio.stage.planning import homes

Array = NDArray[np.float64]
THREADS = 12  # by which a node reads; they hide some ms of each read
# By which a node of a broadcast reads from the source, and as many get what others read. With 4 of each kind, both ends
# of a transfer take less CPU time, but 25 nodes take an eighth longer where the source is about as fast as a disk
# (benchmarks/NOTES.md).
EXCHANGE_THREADS = THREADS // 2


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
        files = np.array([file.num_bytes for file in files_of(manifest.shards)], np.int64)
        return cls(shards, num_files, files)


@dataclass(frozen=True, slots=True)
class Flows:
    """The bytes that staging moves.

    Attributes:
        read: float64[num_nodes], bytes that each node reads from the source.
        opens: float64[num_nodes], files that it opens there.
        received: float64[num_nodes], bytes that others send to it; it sends as many.
        landed: float64[num_nodes], bytes that it writes to its own storage, or back to the source.
        threads: the files or blocks that a node reads at a time.
        exchange: nodes that pass what each reads to all others; 0 if each works alone.
        passed: the files, and the pieces of divided ones, that they pass on.
        returns: whether `landed` is written to the source, and not to the nodes' storage.
    """

    read: Array
    opens: Array
    received: Array
    landed: Array
    threads: int
    exchange: int = 0
    passed: int = 0
    returns: bool = False


def flows_alone(read: Array, opens: Array, threads: int) -> Flows:
    """Returns the flows of nodes that each write what they read; the arrays are those of `Flows`."""
    return Flows(read, opens, np.zeros_like(read), read, threads)


def totals(places: NDArray[np.int64], amounts: NDArray[np.int64], num_nodes: int) -> Array:
    """Returns float64[num_nodes], the sum of the amounts whose place each node is."""
    sums: Array = np.bincount(places, weights=amounts, minlength=num_nodes).astype(np.float64)
    return sums


def ratio(part: Array, whole: Array, otherwise: float = 0.0) -> Array:
    """Returns part / whole, and `otherwise` where whole is 0."""
    found: Array = np.divide(part, whole, out=np.full(len(part), otherwise), where=whole > 0)
    return found


def idle_seconds(num_bytes: float, files: int, nodes: int, source: float, landing: float) -> float:
    """Returns for how long the storage of nodes idles in a broadcast, since what they ask for has not been read yet.

    Each node reads its files one after the other, and asks for the first one of the next node, of the one after that,
    and so on, then for the second ones. So it waits until the first files of all are read, of which it gets one at a
    time; or, if the source is slower than what takes the bytes, for the last ones.

    Args:
        num_bytes, files: of all that the nodes read; the pieces of a divided file count as files.
        nodes: how many read.
        source: bytes a second that all nodes read together.
        landing: bytes a second that a node can take.
    """
    readers, size = min(nodes, files), num_bytes / max(files, 1)
    return max(0.0, min(readers * size / source, readers * size / landing) - size / landing)


def dealt(sizes: Sizes, num_nodes: int) -> tuple[Array, Array, int]:
    """Returns what each node reads if the nodes pass it on, and its opens, float64[num_nodes]; and `Flows.passed`.

    The largest file of each divided shard counts as all of it, and its first node opens the others.
    """
    large = homes.divided(sizes.shards, num_nodes)
    rest, files = sizes.shards.copy(), sizes.num_files.copy()
    rest[large] = files[large] = 0
    first = np.array(homes.assign_first(rest, num_nodes), np.int64)
    read, opens = totals(first, rest, num_nodes), totals(first, files, num_nodes)
    counts = -(-sizes.shards[large] // homes.PIECE_BYTES)
    ends = np.cumsum(counts)
    turns, more = divmod(int(counts.sum()), num_nodes)
    read += homes.PIECE_BYTES * (turns + (np.arange(num_nodes) < more))
    np.subtract.at(read, (ends - 1) % num_nodes, counts * homes.PIECE_BYTES - sizes.shards[large])  # its last piece
    begins = (ends - counts) % num_nodes
    np.add.at(opens, begins, sizes.num_files[large] - 1)
    changes = np.zeros(2 * num_nodes + 1)  # of the opens, from each node on; after the last node comes the first
    np.add.at(changes, begins, 1)
    np.subtract.at(changes, begins + np.minimum(counts, num_nodes), 1)
    passed = int(files.sum() + counts.sum())
    return read, opens + np.cumsum(changes)[:-1].reshape(2, num_nodes).sum(axis=0), passed


def shared(wanted: Array, source: float, switch_nodes: int = 0, uplink: float = 0.0) -> Array:
    """Returns float64[num_nodes], the fair (max-min) rates of nodes that reach a source through switches.

    No node gets more unless one with less gets less.

    Args:
        wanted: float64[num_nodes], the most that each node takes.
        source: what all get together.
        switch_nodes: successive nodes below one switch; 0 for no such limit.
        uplink: what the nodes below one switch get together.
    """
    switch_nodes = min(switch_nodes, len(wanted))
    if switch_nodes:
        padded = np.zeros(-(-len(wanted) // switch_nodes) * switch_nodes)
        padded[: len(wanted)] = wanted
        groups = padded.reshape(-1, switch_nodes)
        wanted = np.minimum(groups, _levels(groups, uplink)[:, None]).ravel()[: len(wanted)]
    got: Array = np.minimum(wanted, _levels(wanted[None], source)[0])
    return got


def _levels(wanted: Array, capacity: float) -> Array:
    """Returns float64[num_groups]: cut off there, the rates of each row of float64[num_groups, n] fit the capacity."""
    ordered = np.sort(wanted, axis=1)
    below = np.cumsum(ordered, axis=1) - ordered
    count = np.arange(ordered.shape[1], 0, -1)  # nodes from this one on
    fits = below + ordered * count <= capacity  # all from this one on get as much as this one wants
    first = np.where(fits.all(axis=1), -1, np.argmin(fits, axis=1))
    rows = np.arange(len(ordered))
    levels: Array = np.where(first < 0, np.inf, (capacity - below[rows, first]) / count[first])
    return levels
