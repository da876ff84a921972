"""Images with objects: a box, a class, an area and a flag for each, as arrays of any length; and COCO's masks.

A mask is an image of classes, made of the segmentations of the objects:

    0          no object
    1 ... 254  the class index and 1
    255        a crowd, or objects of different classes; to be ignored

A segmentation is a list of polygons, which hold the pixels whose middle they contain, or run lengths down the columns,
in turn outside and inside: plain numbers, or text as pycocotools compresses them. Of a polygon pycocotools takes a few
pixels more or less at its edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.dataset.schema import Sample, Schema
from dlio.pack.listing.base import Column, Listing
from dlio.pack.listing.image_files import image_file_listing, image_file_reader
from dlio.pack.listing.lists import Listed

_OBJECTS = "objects"  # the column of a listing: each image's rows of float64, as bytes
_MOST_OUTSIDE = 1.0  # pixels that a box may reach over an edge, where annotations round
MAX_CLASSES = 254
_IGNORED = 255
_MOST_CROSSINGS = 1 << 16  # of an image of any size
_MOST_DIGITS = 12  # of 5 bits, in a number of compressed run lengths


@dataclass(frozen=True, slots=True)
class ObjectBox:
    """An object: left, top, right, bottom in pixels, the class index, the area in pixels, and the flag."""

    left: float
    top: float
    right: float
    bottom: float
    label: int
    area: float
    flag: bool

    @property
    def has_area(self) -> bool:
        """Whether the box has pixels."""
        return self.right > self.left and self.bottom > self.top


def within(found: ObjectBox, width: float, height: float) -> ObjectBox:
    """Returns an object whose box ends at the image's edges, which it may reach over by a pixel.

    Raises:
        ValueError: the box is not within the image, or not of numbers.
    """
    box = (found.left, found.top, found.right, found.bottom)
    if not all(map(math.isfinite, (*box, found.area, width, height))):
        raise ValueError(f"the box {box} is not of finite numbers")
    outside = max(-found.left, -found.top, found.right - width, found.bottom - height)
    if outside > _MOST_OUTSIDE or found.right < found.left or found.bottom < found.top:
        raise ValueError(f"the box {box} (left, top, right, bottom) is not within the image, {width:g} x {height:g}")
    left, right = max(0.0, found.left), min(width, found.right)
    return replace(found, left=left, right=right, top=max(0.0, found.top), bottom=min(height, found.bottom))


def object_listing(
    root: Path,
    listed: Listed[tuple[ObjectBox, ...]],
    class_names: Sequence[str],
    flag: str,
    fields: Mapping[str, Column],
) -> Listing:
    """Returns the listing of images with their objects; `flag` names the field of flags, `fields` are of images."""
    types = {"image": "bytes", "boxes": "float32[?,4]", "labels": "int64[]", "areas": "float32[]", flag: "bool[]"}
    objects = np.empty(len(listed.names), dtype=object)
    for row, some in enumerate(listed.labels):
        rows = [(o.left, o.top, o.right, o.bottom, o.label, o.area, o.flag) for o in some]
        objects[row] = np.array(rows, "float64").tobytes()
    found = image_file_listing(root, listed, None, (), fields)
    own = {name: str(kind) for name, kind in found.schema.items() if name != "image"}
    return replace(
        found, schema=Schema.of(types | own, tuple(class_names)), columns=dict(found.columns) | {_OBJECTS: objects}
    )


@contextmanager
def object_reader(root: Path, listing: Listing) -> Iterator[Callable[[int], Sample]]:
    """Gives a function that reads one image with its objects."""
    flag = next(name for name, kind in listing.schema.fields if str(kind) == "bool[]")
    objects = listing.columns[_OBJECTS]
    with image_file_reader(root, listing) as read_image:

        def read(index: int) -> Sample:
            sample = read_image(index)
            rows = np.frombuffer(objects[index], "float64").reshape(-1, 7)
            fields = {"boxes": rows[:, :4].astype("float32"), "labels": rows[:, 4].astype("int64")}
            fields |= {"areas": rows[:, 5].astype("float32"), flag: rows[:, 6].astype("bool")}
            return Sample(sample.key, sample.fields | fields)

        yield read


def class_mask(objects: Iterable[tuple[int, bool, Any]], height: int, width: int) -> bytes:
    """Returns a PNG of classes, of one channel.

    Args:
        objects: class index, whether it is a crowd, and segmentation of each.
        height, width: of the image, in pixels.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: a segmentation is malformed, or of an image of another size.
    """
    from dlio.codecs import pillow  # which files that are packed unchanged do not need

    mask = np.zeros((height, width), np.uint8)
    for label, is_crowd, segmentation in objects:
        value = _IGNORED if is_crowd else label + 1
        inside = (_polygons if isinstance(segmentation, list) else _runs)(segmentation, height, width)
        mask[inside] = np.where(np.isin(mask[inside], (0, value)), value, _IGNORED)
    return pillow.encoded(mask)


def _polygons(polygons: list[Any], height: int, width: int) -> npt.NDArray[np.bool_]:
    inside = np.zeros((height, width), np.bool_)
    for polygon in polygons:
        points = np.array(polygon, np.float64).reshape(-1, 2)
        if len(points) < 3 or not np.isfinite(points).all():
            raise ValueError(f"a polygon of {len(points)} points: expected three or more, of finite numbers")
        inside |= _filled(np.clip(points, 0, [width, height]), height, width)
    return inside


def _filled(points: npt.NDArray[np.float64], height: int, width: int) -> npt.NDArray[np.bool_]:
    """Returns the pixels whose middle is within a polygon: left of it in their row are an odd number of edges."""
    (x, y), (next_x, next_y) = points.T, np.roll(points, -1, axis=0).T
    firsts, stops = (np.ceil(side(y, next_y) - 0.5).astype(np.int64) for side in (np.minimum, np.maximum))
    counts = stops - firsts  # rows whose middle an edge crosses
    if counts.sum() > max(_MOST_CROSSINGS, height * width):
        raise ValueError(f"a polygon whose edges cross rows {counts.sum():,} times")
    edge = np.repeat(np.arange(len(points)), counts)
    rows = np.arange(counts.sum()) - (np.cumsum(counts) - counts - firsts)[edge]
    at = x[edge] + (rows + 0.5 - y[edge]) * (next_x - x)[edge] / (next_y - y)[edge]
    crossed = np.zeros((height, width + 1), np.uint8)
    np.add.at(crossed, (rows, np.ceil(at - 0.5).astype(np.int64)), 1)
    return np.asarray(np.cumsum(crossed[:, :width], axis=1, dtype=np.uint8) % 2 == 1)


def _runs(segmentation: Any, height: int, width: int) -> npt.NDArray[np.bool_]:
    if segmentation["size"] != [height, width]:
        raise ValueError(f"run lengths of an image of {segmentation['size']}, expected [{height}, {width}]")
    counts = segmentation["counts"]
    runs = _uncompressed(counts) if isinstance(counts, str) else [int(count) for count in counts]
    if any(run < 0 for run in runs) or sum(runs) != height * width:
        raise ValueError(f"run lengths of {sum(runs):,} pixels, expected {height * width:,}")
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return inside.reshape(width, height).T


def _uncompressed(text: str) -> list[int]:
    """Returns run lengths: 5 bits a letter, the lowest first, from the third on differences to the last but one."""
    runs: list[int] = []
    number = digits = 0
    for letter in text.encode():
        bits = letter - 48
        if not 0 <= bits < 64 or digits == _MOST_DIGITS:
            raise ValueError(f"run lengths with {chr(letter)!r}, which pycocotools does not write")
        number |= (bits & 31) << 5 * digits
        digits += 1
        if not bits & 32:
            number -= (bits & 16) << 5 * digits - 4  # the highest bit is the sign
            runs.append(number + (runs[-2] if len(runs) > 2 else 0))
            number = digits = 0
    return runs
