"""The compiled module that needs libdeflate. Import these names from dlio.native."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

def decode_png(png: Buffer) -> NDArray[np.uint8] | None:
    """Returns all pixels of a plain PNG, uint8 (H, W, 3), RGB: 8 bits, grey or RGB, not interlaced; None for any other.

    None also where a chunk or the pixels are damaged or cut off. Chunks that change pixels (tRNS, profiles) are not
    looked at.

    Raises:
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory.
    """
