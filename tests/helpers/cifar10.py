"""Batches of CIFAR-10 as Python 2 pickled them."""

from __future__ import annotations

import numpy as np


def python2_batch(data: np.ndarray, labels: list[int]) -> bytes:
    """Returns a batch as Python 2 and numpy 1 have pickled the published ones."""
    shape = b"K\x01" + b"".join(b"M" + size.to_bytes(2, "little") for size in data.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(" + shape + dtype
    array += b"\x89T" + data.nbytes.to_bytes(4, "little") + data.tobytes() + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."
