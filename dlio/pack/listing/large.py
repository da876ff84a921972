"""Large inputs of one sample: the head has to prove that there is an image before memory is taken for all of it."""

from __future__ import annotations

from dlio.errors import SourceError
from dlio.io import limits

LARGE_BYTES = 64 << 20  # up to this no question is asked
HEAD_BYTES = 4 << 10
# How files of the formats of dlio/codecs/pillow.py begin; WebP's RIFF is followed by its size.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"RIFF", b"GIF8")
_NETPBM = tuple(b"P%c" % kind for kind in b"0123456fy")


def check_large(head: bytes, num_bytes: int) -> None:
    """Makes sure that an input may be an image, and is no larger than one sample may be; `head` is how it begins.

    Raises:
        SourceError: it is neither.
    """
    if num_bytes <= LARGE_BYTES:
        return
    if not head.startswith((*_STARTS, *_NETPBM)):
        raise SourceError(f"it is no image: its {num_bytes:,} bytes begin as no known format does")
    if num_bytes > limits.sample_bytes():
        most = f"more than the {limits.sample_bytes():,} that one sample may have"
        raise SourceError(f"it has {num_bytes:,} bytes, {most}: if it is an image, set DLIO_MAX_SAMPLE to its size")
