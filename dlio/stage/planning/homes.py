"""Which node reads which piece of a data set from the source, so that all read about as much; pure.

The home of a shard, which reads it from the source, is the first node that it is placed on. A shard that is large for
the nodes is divided: its pieces go to the nodes in turn, so that all read it together, and each gets from each of the
others what that has read ("scatter and allgather", as broadcasts of MPI send long messages).

What a node has no room for goes to those that have (`fitted`): another node must keep it, or all would read it.

What a lost node owns goes to others by probing: a shard, or a piece, asks one pseudo-random node after the other, until
one is present. So when a node is lost, only what it owns moves, and when it comes back, only this returns.
"""

from __future__ import annotations

import heapq
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dlio.errors import UsageError
from dlio.io.files import Span
from dlio.io.sizes import counted

PIECE_BYTES = 4 << 20  # copied, and passed from node to node, at a time; a divided file is cut into such pieces
_SHARE = 4  # a shard of more than such a part of what a node reads is divided, else some would read much more
_PROBES = 64  # for a home; then any node that is present, so that one node of thousands is found, too


def assign(sizes: Sequence[int], num_nodes: int, copies: int = 1) -> list[tuple[int, ...]]:
    """Returns the node ranks of each shard, so that the nodes hold about the same number of bytes.

    Each shard goes to the emptiest node, the largest shard first ("longest processing time first", Graham 1969: the
    fullest node holds at most 4/3 of the best possible). The first rank is that node; further copies go to the nodes
    after it.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    check_copies(copies, num_nodes)
    rings = [tuple((node + step) % num_nodes for step in range(copies)) for node in range(num_nodes)]
    return [rings[first] for first in assign_first(sizes, num_nodes)]


def assign_first(sizes: Sequence[int] | NDArray[np.int64], num_nodes: int) -> list[int]:
    """Returns the first of the node ranks that `assign` gives each shard, which reads it from the source."""
    held = list(range(num_nodes))  # each node's bytes times num_nodes, plus its rank: integers compare fastest
    all_sizes = np.asarray(sizes, dtype=np.int64)
    largest_first = np.argsort(-all_sizes, kind="stable")
    found = []
    for size in all_sizes[largest_first].tolist():
        found.append(held[0] % num_nodes)
        heapq.heapreplace(held, held[0] + size * num_nodes)
    assigned = np.empty(len(found), dtype=np.int64)
    assigned[largest_first] = found
    first: list[int] = assigned.tolist()
    return first


def fitted(sizes: Sequence[int], first: Sequence[int], rooms: Sequence[int | None], *, are_divided: bool) -> list[int]:
    """Returns the home of each shard that has room for it, or -1 if none has.

    What a node has no room for goes to the node with the most room left, the largest shard first. Nothing else moves:
    so nodes begin with what they have room for, before they know how much the others have.

    Args:
        sizes: of the shards.
        first: the home of each if all have room; -1 of those that are divided.
        rooms: the bytes that each node may keep; None if that is not known: then what it owns is left to it.
        are_divided: whether those are, since a node has room for all; else each gets a home.
    """
    found, left, over = [*first], [*rooms], list[int]()
    for shard, home in enumerate(first):
        room = left[home] if home >= 0 else -1
        if room is not None and sizes[shard] > room:
            found[shard] = -1
            if home >= 0 or not are_divided:
                over.append(shard)
        elif room is not None:
            left[home] = room - sizes[shard]
    roomiest = [(-room, node) for node, room in enumerate(left) if room is not None]
    heapq.heapify(roomiest)
    for shard in sorted(over, key=lambda shard: -sizes[shard]):
        room, found_node = roomiest[0]
        if sizes[shard] <= -room:
            found[shard] = found_node
            heapq.heapreplace(roomiest, (room + sizes[shard], found_node))
    return found


def check_copies(copies: int, num_nodes: int) -> None:
    """Raises UsageError if there are fewer nodes than copies."""
    if not 1 <= copies <= num_nodes:
        asked = f"{counted(copies, 'copy', 'copies')} on {counted(num_nodes, 'node')}"
        raise UsageError(f"{asked}: give at least 1 copy, and at most one for each node")


def divided(sizes: Sequence[int] | NDArray[np.int64], num_nodes: int) -> list[int]:
    """Returns the numbers of the shards that are divided among nodes which pass to each other what they read."""
    all_sizes = np.asarray(sizes, dtype=np.int64)
    found: list[int] = np.flatnonzero(all_sizes > largest_whole(int(all_sizes.sum()), num_nodes)).tolist()
    return found if num_nodes > 1 else []


def largest_whole(num_bytes: int, num_nodes: int) -> int:
    """Returns the bytes of the largest shard that is not divided in a data set of this size."""
    return max(PIECE_BYTES, num_bytes // (_SHARE * num_nodes))


def num_pieces(num_bytes: int) -> int:
    """Returns the pieces of a file of a divided shard."""
    return -(-num_bytes // PIECE_BYTES)


def in_turn(spans: Sequence[Span], first: int, num_nodes: int, node: int, *, is_own: bool) -> Iterator[Span]:
    """Yields spans of a divided file, cut into its pieces, in the order in which a node fetches them.

    Those that it owns come in their order. Of the others, those of one round through the nodes come after each other,
    in each round from the next node on: so no two nodes ask the same one at a time.

    Args:
        spans: apart from each other, in order.
        first: the number of the file's first piece among those of all divided shards; piece p is of node p % num_nodes.
        num_nodes, node: of the job, and this one.
        is_own: whether those that it owns are wanted, or the others.
    """
    begins, done = [begin for begin, _ in spans], 0
    for begin, end in spans:
        start, stop = first + begin // PIECE_BYTES, first + num_pieces(spans[-1][1])
        last = first + (end - 1) // PIECE_BYTES
        for turn in range(max(start - start % num_nodes, done), last + 1, num_nodes):
            own, least, most = turn + node, max(start, turn), min(stop, turn + num_nodes)
            others = (*range(max(own + 1, least), most), *range(least, min(own, most)))
            for piece in (own,) if is_own else others:
                at = (piece - first) * PIECE_BYTES
                yield from _within(spans, begins, at, at + PIECE_BYTES)
            done = turn + num_nodes


def _within(spans: Sequence[Span], begins: Sequence[int], begin: int, end: int) -> Iterator[Span]:
    """Yields what of the spans, whose begins are given, too, lies between two bytes."""
    for each in range(max(bisect_right(begins, begin) - 1, 0), len(spans)):
        start, stop = max(spans[each][0], begin), min(spans[each][1], end)
        if spans[each][0] >= end:
            return
        if start < stop:
            yield start, stop


def never(node: int) -> bool:
    """Returns False: no node is lost."""
    return False


def home_now(shard: int, home: int, num_nodes: int, is_lost: Callable[[int], bool]) -> int:
    """Returns the node that reads a shard, or a piece of a divided one, while some nodes are lost.

    Args:
        shard: its number.
        home: the node that reads it if none is lost.
        num_nodes: of the job; if all are lost, the home stays.
        is_lost: whether a node is not there; answers quickly.
    """
    node = home
    for probe in range(_PROBES):
        if not is_lost(node):
            return node
        node = zlib.crc32(b"%d %d" % (shard, probe)) % num_nodes
    there = [node for node in range(num_nodes) if not is_lost(node)]
    return there[zlib.crc32(b"%d" % shard) % len(there)] if there else home


def order_alone(home_of: Sequence[int], node: int, num_nodes: int) -> list[int]:
    """Returns all shards in the order in which a node fetches them unless a loader has sent another: its own first.

    Then the first shard of each other home, the second of each, and so on, from the next node on. So all ask a home
    for what it reads then, or has read: each read of the source serves all that wait, and no two ask in the same order.
    """
    homes = np.array(home_of, dtype=np.int64)
    by_home = np.argsort(homes, kind="stable")
    counts = np.bincount(homes, minlength=num_nodes)
    turns = np.empty_like(homes)  # of each shard among those of its home
    turns[by_home] = np.arange(len(homes)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = np.lexsort(((homes - node) % num_nodes, np.where(homes == node, -1, turns)))
    found: list[int] = order.tolist()
    return found
