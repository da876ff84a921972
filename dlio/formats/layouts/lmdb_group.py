"""Pages of an LMDB file with many small records: numpy finds where each piece comes, and the compiled core copies it.

The pages are those that `lmdb_tree.TreeWriter.put` would write, record by record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dlio.dataset.sample_group import Pieces, place
from dlio.dataset.schema import Array
from dlio.formats.layouts import lmdb as layout
from dlio.formats.layouts.lmdb import MAX_NODE_BYTES, NODE, OFFSET_BYTES, PAGE, PAGE_BYTES, ROOM
from dlio.io.random_access import Numbers

_PAGE = np.dtype([("number", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("lower", "<u2"), ("upper", "<u2")])
_OVERFLOW = np.dtype([("number", "<u8"), ("pad", "<u2"), ("flags", "<u2"), ("num_pages", "<u4")])
_NODE = np.dtype([("low", "<u2"), ("high", "<u2"), ("flags", "<u2"), ("key_bytes", "<u2")])
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages that follow one another, and the nodes of the leaf that is not full yet.

    Attributes:
        data: the pages.
        leaves: first key and page number of each leaf among them.
        num_overflow: how many hold values.
        nodes: the nodes that are left.
    """

    data: memoryview
    leaves: list[tuple[bytes, int]]
    num_overflow: int
    nodes: list[bytes]


def lay_out(held: list[bytes], keys: Sequence[Pieces], values: Sequence[Pieces], first: int) -> Pages:
    """Returns the pages of n records, from page `first` on; needs the compiled core.

    Args:
        held: the nodes of the leaf that is being filled.
        keys: columns of n values, which make the keys when they are joined row by row.
        values: columns that make the values.
    """
    key_bytes, num_bytes = (np.sum([column.sizes for column in columns], axis=0) for columns in (keys, values))
    is_big = NODE.size + key_bytes + num_bytes > MAX_NODE_BYTES
    num_pages = np.where(is_big, -(-(PAGE.size + num_bytes) // PAGE_BYTES), 0)
    sizes = NODE.size + key_bytes + np.where(is_big, _NUMBER_BYTES, num_bytes)
    sizes = np.concatenate([Pieces.of(held).sizes, sizes + sizes % 2])
    leaf, value_pages, leaves = _page_numbers(sizes, [0] * len(held) + num_pages.tolist(), first)
    value_pages = value_pages[len(held) :]

    firsts = np.searchsorted(leaf, np.arange(len(leaves)))
    ends = np.cumsum(sizes)
    uppers = PAGE_BYTES - (ends - (ends - sizes)[firsts][leaf])
    pages = (leaves - first) * PAGE_BYTES
    slots = pages[leaf] + PAGE.size + OFFSET_BYTES * (np.arange(len(sizes)) - firsts[leaf])
    nodes = pages[leaf] + uppers

    lower, upper = PAGE.size + OFFSET_BYTES * np.bincount(leaf), uppers[np.append(firsts[1:], len(sizes)) - 1]
    heads = _heads(_PAGE, len(leaves), number=leaves, flags=layout.LEAF, lower=lower, upper=upper)
    flags = np.where(is_big, layout.BIG_VALUE, 0)  # the value has its own pages
    low, high = num_bytes & 0xFFFF, num_bytes >> 16
    node_heads = _heads(_NODE, len(is_big), low=low, high=high, flags=flags, key_bytes=key_bytes)
    numbers, counts = value_pages[is_big], num_pages[is_big]
    overflows = _heads(_OVERFLOW, len(numbers), number=numbers, flags=layout.OVERFLOW, num_pages=counts)

    fresh = nodes[len(held) :]
    inside = fresh + NODE.size + key_bytes
    outside = (value_pages - first) * PAGE_BYTES
    whole = int(pages[-1])  # the last leaf comes after all pages, since it is not full
    data = memoryview(
        place(
            whole + PAGE_BYTES,
            (Pieces.rows(heads), pages),
            (Pieces.rows(uppers.astype("<u2")), slots),
            (Pieces.of(held), nodes[: len(held)]),
            (Pieces.rows(node_heads), fresh),
            *_side_by_side(keys, fresh + NODE.size),
            *_side_by_side(values, np.where(is_big, outside + PAGE.size, inside)),
            (Pieces.rows(value_pages[is_big].astype("<u8")), inside[is_big]),
            (Pieces.rows(overflows), outside[is_big]),
        )
    )
    rest = slice(firsts[-1], None)
    left = [bytes(data[at : at + size]) for at, size in zip(nodes[rest].tolist(), sizes[rest].tolist(), strict=True)]
    full = zip((key_of(data, at) for at in nodes[firsts[:-1]].tolist()), leaves[:-1].tolist(), strict=True)
    return Pages(data[:whole], list(full), int(num_pages.sum()), left)


def _heads(dtype: np.dtype[np.void], count: int, **fields: npt.ArrayLike) -> Array:
    """Returns `count` heads of a kind with these fields; the others are 0."""
    heads = np.zeros(count, dtype)
    for name, values in fields.items():
        heads[name] = values
    return heads


def _page_numbers(sizes: Numbers, num_pages: Sequence[int], page: int) -> tuple[Numbers, Numbers, Numbers]:
    """Returns the leaf of each node, the page of its value, and the page of each leaf, from `page` on."""
    room, of_node, values, leaves = ROOM, [], [], []
    for size, count in zip(sizes.tolist(), num_pages, strict=True):
        values.append(page)
        page += count
        room -= size + OFFSET_BYTES
        if room < 0:
            leaves.append(page)
            page += 1
            room = ROOM - size - OFFSET_BYTES
        of_node.append(len(leaves))
    return np.array(of_node), np.array(values), np.array([*leaves, page])


def _side_by_side(columns: Sequence[Pieces], starts: Numbers) -> Iterator[tuple[Pieces, Numbers]]:
    """Yields the columns with the offsets of their values, which follow one another from `starts` on."""
    for column in columns:
        yield column, starts
        starts = starts + column.sizes


def key_of(data: bytes | memoryview, at: int = 0) -> bytes:
    """Returns the key of the node at an offset."""
    start = at + NODE.size
    return bytes(data[start : start + NODE.unpack_from(data, at)[3]])
