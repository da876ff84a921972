"""The compiled module that needs libjpeg-turbo. Import these names from dlio.native."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

@final
class Probe:
    """A JPEG's headers.

    Attributes:
        width: pixels, as stored.
        height: pixels, as stored.
        components: 1 grey, 3 colour, 4 CMYK or YCCK.
        subsampling: "4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "grey" or "other".
        progressive: whether the picture comes in several scans that refine each other.
        crop_ready: whether decode_batch can cut windows out of it.
        complete: whether the end marker is there; else the file is truncated.
        orientation: EXIF's number, 1 (as stored) to 8, if it is one SHORT or LONG; XMP is not read. decode and
            decode_batch do not turn pictures.
    """

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def components(self) -> int: ...
    @property
    def subsampling(self) -> str: ...
    @property
    def progressive(self) -> bool: ...
    @property
    def crop_ready(self) -> bool: ...
    @property
    def complete(self) -> bool: ...
    @property
    def orientation(self) -> int: ...

def make_crop_ready(jpeg: Buffer) -> bytes:
    """Returns the same picture as a baseline JPEG that windows can be cut from.

    The DCT coefficients, and so the pixels, are the same; APPn and COM segments (EXIF, ICC profile) are kept; the
    Huffman codes are optimal. Returns the input's bytes where rewriting does not apply: already crop-ready, no JPEG,
    damaged, an incomplete progressive file, arithmetic coding, 12 bit, CMYK, or too small for two intervals.

    Raises:
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory; everything else that is wrong with a JPEG leaves it as it is.
    """

def to_planes(jpeg: Buffer) -> bytes | None:
    """Returns the decode-ready record of a JPEG: its coefficients without Huffman codes, from which it comes back.

    The pixels are the JPEG's, bit for bit. The record was decoded and compared before it is returned: `from_planes`
    gives the file byte for byte; of a progressive JPEG the baseline JPEG that has its coefficients and segments.
    Returns None where a JPEG has no record: not 8 bit grey or YCbCr of subsampling 4:4:4, 4:2:2, 4:2:0, 4:4:0 or 4:1:1,
    several scans that are not progressive, arithmetic coding, damaged, or it would not come back.

    Raises:
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory.
    """

def from_planes(record: Buffer) -> bytes:
    """Returns the JPEG of a decode-ready record: the original, where `planes_restores_original`.

    Raises:
        DataError: no record, or a damaged one: its checksum, sizes or tables; the message says which. It is a
            ValueError.
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory.
    """

def is_planes(record: Buffer) -> bool:
    """Returns whether bytes begin as a decode-ready record of a version that this core reads.

    Raises:
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
    """

def planes_restores_original(record: Buffer) -> bool:
    """Returns whether `from_planes` gives the very file that a record was made of: not where that was progressive.

    Returns False for anything else than a record.

    Raises:
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
    """

def decode_batch(
    buffers: list[Any],
    boxes: NDArray[np.int32],
    flips: NDArray[np.bool_],
    out: Any,
    parts: NDArray[np.float64] | None = None,
    places: NDArray[np.int32] | None = None,
    interpolation: int = 0,
) -> NDArray[np.int32]:
    """Decodes a box of each image, resizes it and writes it to `out`; returns int32 (n,): 0 where that was done.

    The resize is Pillow's, antialiased. Grey images fill 3 equal channels. An image that fails leaves its
    row of `out` unchanged, and does not affect the others. Nothing is allocated for an image once the thread has
    decoded one of its size.

    Statuses: 0 decoded, 1 box empty or outside the image, 2 no JPEG, 3 headers or tables broken, 4 data truncated or
    damaged, 5 of a kind left to Pillow, 6 too many pixels or scans, 7 out of memory; `status_message` has the words.

    Args:
        buffers: n objects with the buffer protocol, held by it until this returns (so a bytearray cannot be resized as
            long), and whose bytes nobody changes meanwhile.
        boxes: int32 (n, 4) of left, top, width, height in pixels of the image as stored.
        flips: bool (n,), True where the result is mirrored left to right.
        out: uint8 (n, H, W, 3) or (n, 3, H, W), contiguous and writable, of numpy or anything with DLPack. Where both
            fit, the channels are last.
        parts: float64 (n, 4) of left, top, width, height in pixels from the corner of the box: what is resized of it,
            Pillow's `crop(box).resize(size, box=part)`; None for all. What lies in the box beside the part counts as
            far as the resize reaches, so that a part of an image resized is the same as the whole image resized and
            then cropped. One that is empty or reaches outside the box has status 1.
        places: int32 (n, 4) of left, top, width, height in pixels of the image's row of `out`: where the result goes;
            the rest of the row stays. None for all of it. An image whose place is empty is not looked at: status 0.
        interpolation: 0 bilinear, 1 bicubic, 2 nearest.

    Raises:
        TypeError: no list, no array, a wrong dtype, a read-only `out`, or a buffer without the buffer protocol.
        BufferError, ValueError: a buffer that is not contiguous; which of them, its class decides.
        ValueError: a wrong shape, an array that is not contiguous or not in main memory, a place that is not within
            `out`; the message names it.
    """

def decode(jpeg: Buffer) -> NDArray[np.uint8]:
    """Returns all pixels, uint8 (H, W, 3), RGB, as libjpeg-turbo decodes them by default.

    Raises:
        DataError: the JPEG is bad: what `status_message` says of it, and libjpeg's own message.
        UnsupportedJpegError: it is of a kind left to Pillow.
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory.
    """

def encode(pixels: NDArray[np.uint8], quality: int) -> bytes:
    """Returns the pixels as libjpeg-turbo writes them by default: a baseline JPEG with 4:2:0 subsampling.

    Args:
        pixels: uint8 (H, W, 3), RGB, contiguous, of numpy or anything with the buffer protocol; nobody changes them
            meanwhile.
        quality: libjpeg's, 1 to 100.

    Raises:
        DataError: a size that no JPEG has: 0, or more than 65,500 pixels wide or high.
        ValueError: another shape or dtype, or a quality out of range.
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory.
    """

def probe(jpeg: Buffer) -> Probe:
    """Returns the headers, without decoding.

    Raises:
        DataError: the headers are bad: what `status_message` says of it, and libjpeg's own message.
        UnsupportedJpegError: it is of a kind that libjpeg does not read.
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory.
    """

def measure(buffers: list[Any]) -> NDArray[np.int64]:
    """Returns heights and widths, int64 (n, 2), of JPEGs that probe finds nothing wrong with and whose end is there.

    Returns 0, 0 for any other: `probe` raises the reason.

    Args:
        buffers: n objects with the buffer protocol, which nobody changes meanwhile.

    Raises:
        TypeError, BufferError: as decode_batch.
    """

TAKES_OUR_DECODER: bool
"""Whether the libjpeg that is loaded lets windows be decoded by the core's own entropy decoder; found by a try."""

BACK_ENDS: list[str]
"""The inner loops that this processor has, the quickest first: avx512, avx2, portable. All make the same bytes."""

def use_back_end(name: str) -> None:
    """Has the whole process use one of BACK_ENDS from the next image on; for tests and benchmarks.

    Raises:
        ValueError: this processor has none of that name.
    """
