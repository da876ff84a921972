"""The compiled core: checksums, reads, orders, resizes, colours, and, where it has the libraries, JPEGs and PNGs.

    resize_batch(images, boxes, flips, out)      crops, resized into the images of one array; a status for each
    augment(images, steps, numbers)              colours, and the operations of AutoAugment and its kin, in place
    mix_images(images, shares, boxes)            each image mixed with the one before it, in place
    read_files(folder, names, bounds, room, capacity)
                                                 the contents of many small files
    read_ranges(descriptors, starts, sizes, out, places, crcs)
                                                 many parts of open files, each to its place, with checksums
    normalize(images, tables, out, channel, out_channel)
                                                 numbers of pixels by a table for each channel
    permute(positions, size, keys)               places in a shuffled order
    crc32c(data, crc)                            the CRC-32C of bytes, after others; there without the core, too
    highway_hash(data, key)                      Riegeli's hash of bytes
    extend_crcs(data, bounds, crcs)              that of many pieces of bytes
    place(size, columns)                         such pieces at given offsets, zeros between them
    status_message(status)                       the meaning of a status
    LEFT_TO_PILLOW                               the status of an image that the core does not decode
    available                                    whether the core is installed and can be loaded

Where `decodes_jpeg`, since libjpeg-turbo was there when the core was built, and is there now:

    make_crop_ready(jpeg)                        the same picture, as a JPEG that windows can be cut from
    decode_batch(buffers, boxes, flips, out)     as resize_batch, of JPEGs
    decode(jpeg)                                 all pixels
    encode(pixels, quality)                      a JPEG of them
    to_planes(jpeg)                              a decode-ready record, which decodes in about half of the time
    from_planes(record)                          the JPEG of a record
    is_planes(record)                            whether bytes are one; all that decode JPEGs take these, too
    planes_restores_original(record)             whether its JPEG is the file that it was made of
    probe(jpeg)                                  the headers
    measure(buffers)                             heights and widths of many
    missing(purpose)                             the error that says why this is not there

Where `decodes_png`, by libdeflate:

    decode_png(png)                              all pixels of a plain PNG

Every function takes any object with the buffer protocol and works without Python's lock, so threads run side by side;
each thread keeps its working memory from image to image, and nothing else is kept, so fork and spawn are safe. What is
not there raises MissingPackageError.

Crop-ready: a restart marker follows every k MCUs, where k divides the MCUs of a row and is about 64 pixels. The
intervals between markers can be decoded alone, so decode_batch reads only those that a box touches. Any decoder of
JPEG reads such a file as before.

Bad input: damage and truncation are an error if they touch the decoded part; stray bytes between intact data, and
oddities of headers, are not. Refused are more than `dlio.dataset.schema.MAX_PIXELS` pixels, more than 100
scans, and more than 1024 pixels for each byte of the file (but with arithmetic coding, which may need less). CMYK,
YCCK and 12 bit JPEGs are left to Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dlio.errors import DISTRIBUTION, MissingPackageError

if TYPE_CHECKING:
    from dlio.native._core import (
        LEFT_TO_PILLOW,
        augment,
        crc32c,
        extend_crcs,
        highway_hash,
        mix_images,
        normalize,
        permute,
        place,
        read_files,
        read_ranges,
        resize_batch,
        status_message,
    )
    from dlio.native._jpeg import (
        Probe,
        decode,
        decode_batch,
        encode,
        from_planes,
        is_planes,
        make_crop_ready,
        measure,
        planes_restores_original,
        probe,
        to_planes,
    )
    from dlio.native._png import decode_png, inflate

__all__ = [
    "LEFT_TO_PILLOW",
    "Probe",
    "augment",
    "available",
    "crc32c",
    "decode",
    "decode_batch",
    "decode_png",
    "decodes_jpeg",
    "decodes_png",
    "encode",
    "extend_crcs",
    "from_planes",
    "highway_hash",
    "inflate",
    "is_planes",
    "make_crop_ready",
    "measure",
    "missing",
    "mix_images",
    "normalize",
    "permute",
    "place",
    "planes_restores_original",
    "probe",
    "read_files",
    "read_ranges",
    "resize_batch",
    "status_message",
    "to_planes",
]

_LIBJPEG = "libjpeg62-turbo-dev g++ (on Ubuntu: libjpeg-turbo8-dev g++)"


def _load(name: str, packages: str) -> tuple[Any, str]:
    """Returns a compiled module; or None, and why it is not there."""
    install = f"install {DISTRIBUTION}'s wheel for x86-64 or ARM, or apt-get install {packages} and install dlio again"
    try:
        return import_module(f"dlio.native.{name}"), ""
    except ModuleNotFoundError:
        return None, f"this installation of dlio was built without: {install}"
    except ImportError as error:  # a library is not on this machine, or another one than the core was built with
        return None, f"cannot be loaded here ({error}): {install}"


_core, _no_core = _load("_core", _LIBJPEG)
_jpeg, _no_jpeg = _load("_jpeg", _LIBJPEG) if _core else (None, _no_core)
_png, _no_png = _load("_png", "libdeflate-dev g++") if _core else (None, _no_core)
_MODULES = (_core, _jpeg, _png)

available, decodes_jpeg, decodes_png = (module is not None for module in _MODULES)
globals().update({name: getattr(module, name) for module in _MODULES for name in __all__ if hasattr(module, name)})
if not available:  # no function returns a status then: any number but 0 does
    globals().update(LEFT_TO_PILLOW=1, crc32c=import_module("crc32c").crc32c)


def missing(purpose: str, image: str = "JPEG") -> MissingPackageError:
    """Returns the error to raise if `purpose` needs the core for images, `JPEG` or `PNG`; says why, and the remedy."""
    part = f"the compiled core's decoder of {image}s" if available else "the compiled core"
    return MissingPackageError(f"{purpose} needs {part}, which {_no_png if image == 'PNG' else _no_jpeg}")


def __getattr__(name: str) -> Any:
    """Raises MissingPackageError for a function that is not there."""
    if name not in __all__:
        raise AttributeError(f"module 'dlio.native' has no attribute {name!r}")
    raise missing(f"dlio.native.{name}", "PNG" if name == "decode_png" else "JPEG")
