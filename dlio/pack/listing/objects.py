"""Images with objects: a box, a class, an area and a flag for each, as arrays of any length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dlio.dataset.schema import Sample, Schema
from dlio.pack.listing.base import Column, Listing
from dlio.pack.listing.image_files import image_file_listing, image_file_reader
from dlio.pack.listing.lists import Listed

_OBJECTS = "objects"  # the column of a listing: each image's rows of float64, as bytes
_MOST_OUTSIDE = 1.0  # pixels that a box may reach over an edge, where annotations round


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
