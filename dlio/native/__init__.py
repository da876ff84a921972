"""The compiled core: crop-ready rewriting, cropped decode and resize of JPEGs, and reading of many small files.

    make_crop_ready(jpeg)                        the same picture, as a JPEG that windows can be cut from
    decode_batch(buffers, boxes, flips, out)     crops, resized into the images of one array; a status for each
    resize_batch(images, boxes, flips, out)      the same of pixels that were decoded already
    adjust_colors(images, steps, factors)        brightness, contrast and saturation, in place
    augment(images, steps, numbers)              the operations of AutoAugment and its kin, in place
    mix_images(images, shares, boxes)            each image mixed with the one before it, in place
    decode(jpeg)                                 all pixels
    decode_png(png)                              all pixels of a plain PNG; where `decodes_png`
    encode(pixels, quality)                      a JPEG of them
    probe(jpeg)                                  the headers
    measure(buffers)                             heights and widths of many
    read_files(folder, names, bounds, room, capacity)
                                                 the contents of many small files
    read_ranges(descriptors, starts, sizes, out, places, crcs)
                                                 many parts of open files, each to its place, with checksums
    normalize(images, tables, out, channel, out_channel)
                                                 numbers of pixels by a table for each channel
    permute(positions, size, keys)               places in a shuffled order
    extend_crcs(data, bounds, crcs)              the CRC-32C of many pieces of bytes
    place(size, columns)                         such pieces at given offsets, zeros between them
    status_message(status)                       the meaning of a status of decode_batch
    available                                    whether the core is installed and can be loaded
    missing(purpose)                             the error that says why it is not

Every function takes any object with the buffer protocol and works without Python's lock, so threads run side by side;
each thread keeps its working memory from image to image, and nothing else is kept, so fork and spawn are safe. Without
the core `available` is False, and the functions raise MissingPackageError.

Crop-ready: a restart marker follows every k MCUs, where k divides the MCUs of a row and is about 64 pixels. The
intervals between markers can be decoded alone, so decode_batch reads only those that a box touches. Any decoder of
JPEG reads such a file as before.

Bad input: damage and truncation are an error if they touch the decoded part; stray bytes between intact data, and
oddities of headers, are not. Refused are more than `dlio.dataset.schema.MAX_PIXELS` pixels, more than 100
scans, and more than 1024 pixels for each byte of the file (but with arithmetic coding, which may need less). CMYK,
YCCK and 12 bit JPEGs are left to Pillow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlio.errors import DISTRIBUTION, MissingPackageError

if TYPE_CHECKING:
    from dlio.native._jpeg import (
        Probe,
        adjust_colors,
        augment,
        decode,
        decode_batch,
        decode_png,
        encode,
        extend_crcs,
        make_crop_ready,
        measure,
        mix_images,
        normalize,
        permute,
        place,
        probe,
        read_files,
        read_ranges,
        resize_batch,
        status_message,
    )

__all__ = [
    "Probe",
    "adjust_colors",
    "augment",
    "available",
    "decode",
    "decode_batch",
    "decode_png",
    "decodes_png",
    "encode",
    "extend_crcs",
    "make_crop_ready",
    "measure",
    "missing",
    "mix_images",
    "normalize",
    "permute",
    "place",
    "probe",
    "read_files",
    "read_ranges",
    "resize_batch",
    "status_message",
]

_INSTALL = (
    f"install {DISTRIBUTION}'s wheel for x86-64 or ARM, or "
    "apt-get install libjpeg62-turbo-dev g++ (on Ubuntu: libjpeg-turbo8-dev g++) and install dlio again"
)

_core: Any = None
try:
    from dlio.native import _jpeg as _core
except ModuleNotFoundError:
    _problem = f"this installation of dlio was built without: {_INSTALL}"
except ImportError as error:  # libjpeg is not on this machine, or another one than the core was built with
    _problem = f"cannot be loaded here ({error}): {_INSTALL}"

available = _core is not None
decodes_png = hasattr(_core, "decode_png")  # built with libdeflate
globals().update({name: getattr(_core, name) for name in __all__ if hasattr(_core, name)})


def missing(purpose: str) -> MissingPackageError:
    """Returns the error to raise if `purpose` needs the core and it is missing; says why, and what to install."""
    return MissingPackageError(f"{purpose} needs the compiled JPEG core, which {_problem}")


def __getattr__(name: str) -> Any:
    """Raises MissingPackageError for a function of the core where it is missing."""
    if name not in __all__:
        raise AttributeError(f"module 'dlio.native' has no attribute {name!r}")
    if not available:
        raise missing(f"dlio.native.{name}")
    return getattr(_core, name)
