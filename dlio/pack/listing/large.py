"""Large inputs of one sample: the first bytes must be those of an image before memory is allocated for the whole."""

from __future__ import annotations

from dlio.errors import SourceError
from dlio.io import limits

LARGE_BYTES = 64 << 20  # smaller inputs are not checked
HEAD_BYTES = 4 << 10
# How files of the formats of dlio/codecs/pillow.py begin; WebP's RIFF is followed by its size.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"RIFF", b"GIF8")
_NETPBM = tuple(b"P%c" % kind for kind in b"0123456fy")


def check_large(head: bytes, num_bytes: int) -> None:
    """Checks that an input that begins with `head` may be an image, and is not larger than one sample may be.

    Raises:
        SourceError: it is not an image, or too large.
    """
    if num_bytes <= LARGE_BYTES:
        return
    if not head.startswith((*_STARTS, *_NETPBM)):
        raise SourceError(f"it is not an image: its {num_bytes:,} bytes begin like no known format")
    if num_bytes > limits.sample_bytes():
        most = f"more than the limit of {limits.sample_bytes():,} for one sample"
        raise SourceError(f"it has {num_bytes:,} bytes, {most}: if it is an image, set DLIO_MAX_SAMPLE to its size")
