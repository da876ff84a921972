"""Random numbers and permutations as pure functions of a key: nothing is drawn in sequence, so nothing is stored.

Any process can compute the number for sample 7 of epoch 3, or position 10^9 of a shuffled order, without computing the
others. The functions are defined here, not taken from numpy, whose streams may change with its version: after an
upgrade a run continues in the same order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dlio import native

Keys = npt.NDArray[np.uint64]

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_NUM_ROUNDS = 8  # the fewest (even) with which 2 to 40 samples pass the chi-square test in tests/test_random_keys.py


def mix(values: Keys) -> Keys:
    """Returns splitmix64's finaliser (Steele, Lea, Flood 2014) of each value: uint64, same shape."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def derive(*parts: int) -> int:
    """Returns a 64-bit key that depends on every one of `parts` and on their order."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = mix((state ^ np.uint64(part & _MASK)) + np.uint64(_GAMMA))
    return int(state[0])


def derive_each(key: int, numbers: npt.ArrayLike) -> Keys:
    """Returns `derive`-like keys for many numbers at once: uint64, the shape of `numbers`."""
    array = np.atleast_1d(np.asarray(numbers)).astype(np.uint64)
    return mix(mix(array + np.uint64(_GAMMA)) ^ np.uint64(key))


def uniform(keys: Keys, count: int) -> npt.NDArray[np.float64]:
    """Returns `count` numbers of [0, 1) for each of n keys: float64 of shape (n, count)."""
    counters = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    bits = mix(keys[:, None] + counters[None, :]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def permute(positions: npt.NDArray[np.int64], size: int, key: int) -> npt.NDArray[np.int64]:
    """Returns the images of `positions` under the permutation of range(size) with this key: int64, same shape.

    A Feistel network over the next power of two, walked along its cycle until it is back within the range (Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002): no memory beyond the positions asked for.
    """
    if size < 2:
        return positions.copy()
    bits = max(2, (size - 1).bit_length())
    round_keys = derive_each(key, np.arange(_NUM_ROUNDS))
    if native.available:
        return native.permute(positions.ravel(), size, round_keys).reshape(positions.shape)
    values = _encipher(positions.astype(np.uint64), bits, round_keys)
    while (outside := values >= size).any():
        values[outside] = _encipher(values[outside], bits, round_keys)
    return values.astype(np.int64)


def _encipher(values: Keys, bits: int, round_keys: Keys) -> Keys:
    """Permutes range(2**bits): the two halves take turns in being changed by a keyed function of the other."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for even, odd in zip(round_keys[::2], round_keys[1::2], strict=True):
        low = low ^ (mix(high ^ even) & low_mask)
        high = high ^ (mix(low ^ odd) & high_mask)
    return (high << low_bits) | low
