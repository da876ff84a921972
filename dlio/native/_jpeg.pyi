"""The compiled module. Import these names from dlio.native."""

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

def resize_batch(
    images: NDArray[np.uint8] | list[Any],
    boxes: NDArray[np.int32],
    flips: NDArray[np.bool_],
    out: Any,
    parts: NDArray[np.float64] | None = None,
    places: NDArray[np.int32] | None = None,
    interpolation: int = 0,
) -> NDArray[np.int32]:
    """Resizes a box of each image and writes it to `out`, as decode_batch does; returns the same statuses, int32 (n,).

    Args:
        images: n images, uint8 (n, height, width, 3), RGB, contiguous; or a list of n, each (height, width, 3), of
            numpy or anything with the buffer protocol. One without pixels has status 1, and its row of `out` stays
            unchanged.
        boxes, flips, out, parts, places, interpolation: as for decode_batch.

    Raises:
        TypeError, BufferError, ValueError: as decode_batch; ValueError also for an image of another shape or dtype.
    """

def adjust_colors(images: NDArray[np.uint8], steps: NDArray[np.uint8], factors: NDArray[np.float32]) -> None:
    """Changes images in place, as Pillow's ImageEnhance does, byte for byte.

    Args:
        images: uint8 (n, H, W, 3), contiguous, or a view of this shape of a contiguous array (n, 3, H, W).
        steps: uint8 (n, k): what to do to each image, one after the other: 0 brightness, 1 contrast, 2 saturation.
        factors: float32 (n, k): at 0 black, the mean grey or grey; at 1 as it was; beyond 1 more of it.

    Raises:
        TypeError, ValueError: as decode_batch.
    """

def augment(images: NDArray[np.uint8], steps: NDArray[np.uint8], numbers: NDArray[np.float64]) -> None:
    """Changes images in place, one operation after the other, byte for byte as Pillow does.

        0 brightness, 1 contrast, 2 saturation, 3 sharpness     the factor, as ImageEnhance's
        4 posterize                                             the bits that stay, 0 to 8
        5 solarize                                              the threshold
        6 autocontrast, 7 equalize                              none
        8 nearest, 9 bilinear                                   a, b, c, d, e, f of Image.transform(AFFINE), and the
                                                                three values of what comes from outside
        10                                                      none: nothing is done

    Args:
        images: as for adjust_colors.
        steps: uint8 (n, k), the operations of each image.
        numbers: float64 (n, k, 9), what each needs, from the first number on; finite, none beyond 1e9.

    Raises:
        TypeError: an array of another dtype or number of dimensions.
        ValueError: another shape, images of another layout, or no possible operation; nothing is changed then.
        MemoryError: there is not enough memory; some images may be changed.
    """

def mix_images(images: NDArray[np.uint8], shares: NDArray[np.float64], boxes: NDArray[np.int32]) -> None:
    """Mixes each image in place with the one before it, as that was; the first one with the last.

    Args:
        images: as for adjust_colors.
        shares: float64 (n,): what counts of an image itself, 0 to 1, in steps of 1/65536; the rest is the other one's.
        boxes: int32 (n, 4) of top, left, bottom, right: the part that is the other one's, and all else the image's own.
            Where a box is empty, `shares` counts.

    Raises:
        TypeError, ValueError: as augment.
        MemoryError: there is not enough memory; the images are as they were.
    """

def decode(jpeg: Buffer) -> NDArray[np.uint8]:
    """Returns all pixels, uint8 (H, W, 3), RGB, as libjpeg-turbo decodes them by default.

    Raises:
        DataError: the JPEG is bad: what `status_message` says of it, and libjpeg's own message.
        UnsupportedJpegError: it is of a kind left to Pillow.
        TypeError, BufferError, ValueError: no contiguous buffer; which of them, its class decides.
        MemoryError: there is not enough memory.
    """

def decode_png(png: Buffer) -> NDArray[np.uint8] | None:
    """Returns all pixels of a plain PNG, uint8 (H, W, 3), RGB: 8 bits, grey or RGB, not interlaced; None for any other.

    None also where a chunk or the pixels are damaged or cut off. Chunks that change pixels (tRNS, profiles) are not
    looked at. The function is there where the core was built with libdeflate.

    Raises:
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

def read_files(
    folder: str, names: Buffer, bounds: NDArray[np.int64], room: int, capacity: int
) -> tuple[bytes, NDArray[np.int64], list[tuple[int, int, int]]]:
    """Reads many small files, each by one open, one read and one close.

    Never waits for a pipe's writer. A signal ends it early, and so does a file after which 5 ms have passed; it raises
    nothing for that.

    Args:
        folder: where the names begin that are not absolute.
        names: the paths of the files, one behind the other, as the file system has them.
        bounds: int64 (n + 1,), where in `names` each path begins, and where the last one ends.
        room: how many bytes of each are read at most, 1 to `capacity`.
        capacity: how many bytes are read at most of all.

    Returns:
        What was read of the first k files, where it ends before the last; int64 (k + 1,), where it
        begins for each file, and ends; and for each file that could not be read, or of which nothing or `room` bytes
        came: its number, the system's error or 0, and its open descriptor or -1.

    Raises:
        TypeError: the folder is no text, or an array of another dtype.
        ValueError: a room out of range, bounds that are not ascending within `names`, or a name with a null byte.
        UnicodeEncodeError: a folder that no file system can have.
    """

def read_ranges(
    descriptors: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out: Buffer,
    places: NDArray[np.int64],
    crcs: NDArray[np.uint32] | None,
) -> tuple[NDArray[np.int64], int, int, float]:
    """Reads n ranges of open files, each to its place, and extends n CRC-32Cs, each by its range.

    Args:
        descriptors: int64 (n,), the file of each.
        starts: int64 (n,), where each begins, in bytes.
        sizes: int64 (n,), the bytes of each.
        out: uint8, writable.
        places: int64 (n,), where each goes in `out`.
        crcs: uint32 (n,), as for `extend_crcs`; a range that was not read leaves its own as it was. None computes none.

    Returns:
        How many bytes were read of each, int64 (n,), fewer where the file ends; how many ranges were read; and if
        that is not all, the system's error of the next one, which may be a signal, else 0; and for how many seconds
        the thread waited.

    Raises:
        TypeError: an array of another dtype, or a read-only one.
        ValueError: another number of sizes, places or checksums, a negative number, or ranges beyond `out`.
    """

def normalize(
    images: NDArray[np.uint8], tables: NDArray[Any], out: NDArray[Any], channel: int, out_channel: int
) -> None:
    """Sets each number of `out` to that of its pixel's level in its channel's table.

    Args:
        images: uint8, with n images, their rows, columns and channels in the order that `channel` gives.
        tables: uint16 or uint32 (channels, 256).
        out: of the tables' dtype.
        channel, out_channel: the axis of the channels, 1 or 3, in `images` and `out`.

    Raises:
        TypeError: an array of another dtype, or a read-only `out`.
        ValueError: the lengths differ, or an axis is not 1 or 3.
    """

def permute(positions: NDArray[np.int64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the places of positions under a permutation of range(size), as `dlio.random_keys.permute` defines it.

    Args:
        positions: int64 (n,), each in range(size).
        size: at least 2.
        keys: uint64 (8,), of the rounds.

    Raises:
        TypeError: an array of another dtype.
        ValueError: a position, a size or a number of keys that is out of range.
    """

def extend_crcs(data: Buffer, bounds: NDArray[np.int64], crcs: NDArray[np.uint32]) -> None:
    """Extends n CRC-32Cs, each by its piece of the data.

    Args:
        data: the pieces.
        bounds: int64 (n + 1,), where in `data` each piece begins, and where the last one ends.
        crcs: uint32 (n,), the checksums of what precedes each piece, 0 for nothing; they are changed.

    Raises:
        TypeError: an array of another dtype, or a read-only one.
        ValueError: bounds that are not ascending within `data`, or another number of checksums.
    """

def place(size: int, columns: list[tuple[Buffer, NDArray[np.int64], NDArray[np.int64]]]) -> bytes:
    """Returns `size` bytes: zeros, and pieces at given offsets; where pieces overlap, the last one.

    Args:
        size: the number of bytes.
        columns: n pieces, and their bounds, as `extend_crcs` takes them, and where each comes, int64 (n,).

    Raises:
        TypeError: an array of another dtype, or a negative size.
        ValueError: bounds that are not ascending within the data, or a piece that goes beyond the bytes.
        MemoryError: there is not enough memory.
    """

MAX_PIXELS: int
"""The most pixels an image may have."""

TAKES_OUR_DECODER: bool
"""Whether the libjpeg that is loaded lets windows be decoded by the core's own entropy decoder; found by a try."""

def status_message(status: int) -> str:
    """Returns the meaning of a status of decode_batch.

    Raises:
        ValueError: the status is unknown.
    """
