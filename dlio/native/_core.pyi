"""The compiled module that needs no library. Import these names from dlio.native."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

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
        images: uint8 (n, H, W, 3), contiguous, or a view of this shape of a contiguous array (n, 3, H, W).
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
        images: as for augment.
        shares: float64 (n,): what counts of an image itself, 0 to 1, in steps of 1/65536; the rest is the other one's.
        boxes: int32 (n, 4) of top, left, bottom, right: the part that is the other one's, and all else the image's own.
            Where a box is empty, `shares` counts.

    Raises:
        TypeError, ValueError: as augment.
        MemoryError: there is not enough memory; the images are as they were.
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
        TypeError: the folder is not text, or an array of another dtype.
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

def crc32c(data: Buffer, crc: int = 0) -> int:
    """Returns a CRC-32C extended by the data.

    Args:
        data: any bytes.
        crc: the checksum of what precedes them, 0 for nothing.

    Raises:
        TypeError, BufferError, ValueError: no contiguous buffer, which of them, its class decides; or no uint32.
    """

def highway_hash(data: Buffer, key: tuple[int, int, int, int]) -> int:
    """Returns the HighwayHash of 64 bits of the data.

    Args:
        data: any bytes.
        key: four uint64.

    Raises:
        TypeError, BufferError, ValueError: no contiguous buffer, which of them, its class decides; or no such key.
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

def status_message(status: int) -> str:
    """Returns the meaning of a status of decode_batch.

    Raises:
        ValueError: the status is unknown.
    """

LEFT_TO_PILLOW: int
"""The status of an image of a kind that the core does not decode."""

MAX_PIXELS: int
"""The most pixels an image may have."""
