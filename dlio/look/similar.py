"""Images that are equal, or nearly so: a difference hash of 64 bits, and pairs of hashes a few bits apart.

The hash says of an 8 x 9 grid of grey means which one of two neighbours is lighter (N. Krawetz, "Kind of Like That",
2013). Scaling and another JPEG quality change a few bits of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

HASH_PIXELS = 216  # height and width to hash: a multiple of 8 and of 9
NEAR_BITS = 4
_LEAST_CHANGE = 2.0  # of the means, in grey values; a plain image would be like any other plain image
_MOST_ALIKE = 500  # hashes in one bucket that are compared; the images of a flat background are all alike

Hashes = npt.NDArray[np.uint64]


def hashes(images: npt.NDArray[np.uint8]) -> Hashes:
    """Returns the hash of each image, uint64 of shape (n,); 0 for an image without structure.

    Args:
        images: uint8 of shape (n, 3, HASH_PIXELS, HASH_PIXELS).
    """
    step = HASH_PIXELS // 8, HASH_PIXELS // 9
    means = images.mean(axis=1, dtype=np.float32).reshape(len(images), 8, step[0], 9, step[1]).mean(axis=(2, 4))
    bits = np.diff(means, axis=2) > 0
    found = np.packbits(bits.reshape(len(images), 64), axis=1).view(np.uint64)[:, 0].copy()
    found[means.std(axis=(1, 2)) < _LEAST_CHANGE] = 0
    return found


def equal(digests: Iterable[Hashable]) -> list[list[int]]:
    """Returns the groups of several rows with the same digest; None is not a digest."""
    rows: dict[Hashable, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        if digest is not None:
            rows[digest].append(row)
    return [group for group in rows.values() if len(group) > 1]


def near(found: Hashes) -> list[tuple[int, int]]:
    """Returns the pairs of rows whose hashes differ by at most NEAR_BITS bits, the most alike and smaller rows first.

    Two such hashes agree in one of five parts; only hashes that do are compared.
    """
    pairs: set[tuple[int, int]] = set()
    for bucket in _buckets(found):
        pairs |= _pairs(found, bucket[:_MOST_ALIKE].tolist())
    return sorted(pairs, key=lambda pair: (int(found[pair[0]] ^ found[pair[1]]).bit_count(), pair))


def are_all_compared(found: Hashes) -> bool:
    """Returns whether `near` finds all pairs: it compares only the first of very many hashes that agree in a part."""
    return all(len(bucket) <= _MOST_ALIKE for bucket in _buckets(found))


def _buckets(found: Hashes) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the rows of the hashes that agree in a part, for each of the five parts."""
    rows = np.flatnonzero(found)
    for start in range(0, 64, 13):
        part = found[rows] >> np.uint64(start) & np.uint64((1 << 13) - 1)
        order = rows[np.argsort(part, kind="stable")]
        edges = np.flatnonzero(np.diff(np.sort(part), prepend=-1, append=-1).astype(bool))
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            yield order[begin:end]


def _pairs(found: Hashes, rows: Sequence[int]) -> set[tuple[int, int]]:
    own, pairs = found[list(rows)], set()
    for number, row in enumerate(rows[:-1]):
        apart = np.unpackbits((own[number + 1 :] ^ own[number]).view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1)
        others = (rows[number + 1 + other] for other in np.flatnonzero(apart <= NEAR_BITS).tolist())
        pairs |= {(min(row, other), max(row, other)) for other in others}
    return pairs
