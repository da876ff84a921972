"""COCO: a JSON file of images, annotations and categories, and a folder of the images.

    boxes     float32[?,4]   left, top, right, bottom in pixels; COCO has left, top, width, height
    labels    int64[]        class indices from 0, in the order of the categories' ids, which have gaps
    areas     float32[]      in pixels, as COCO has them
    crowd     bool[]         whether an annotation stands for several objects
    image_id  int64          COCO's number of the image, for its evaluation

Annotations of no area are left out, with a log message. An image is refused whose annotations are wrong: of an unknown
category, twice the same, or with a box that reaches over the image's edge by more than a pixel.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset.schema import Sample
from dlio.errors import SourceError
from dlio.io.files import read_regular
from dlio.pack.listing.base import Listing
from dlio.pack.listing.lists import Listed
from dlio.pack.listing.objects import Found, object_listing, object_reader, within

log = logging.getLogger(__name__)
_HEAD_BYTES, _MAX_BYTES = 4 << 10, 4 << 30
_MAX_ID = 1 << 62


def coco(path: str | Path, root: str | Path | None = None) -> Coco:
    """Returns the images of an annotation file with their objects.

    Args:
        path: the file, such as `annotations/instances_train2017.json`.
        root: the folder of the images; by default `train2017` or `images` beside the file or beside its folder, else
            the file's folder.
    """
    path = Path(path).absolute()
    return Coco(path, Path(root).absolute() if root is not None else _root(path))


def _root(path: Path) -> Path:
    names = (path.stem.rpartition("_")[2], f"images/{path.stem.rpartition('_')[2]}", "images")
    folders = (folder / name for folder in (path.parent.parent, path.parent) for name in names)
    return next((folder for folder in folders if folder.is_dir()), path.parent)


open_source = coco


def recognises(path: Path) -> bool:
    """Returns whether `path` is a JSON file whose beginning has images or annotations."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return any(word in head for word in (b'"images"', b'"annotations"', b'"licenses"'))


@dataclass(frozen=True, slots=True)
class Coco:
    """See `coco`."""

    path: Path
    root: Path
    name: str = "coco"

    def listing(self) -> Listing:
        """Returns the images in the order of the file; a key is the image's path below the root."""
        try:
            found = json.loads(read_regular(self.path, _MAX_BYTES))
            images, annotations = list(found["images"]), list(found["annotations"])
            classes = {_id(each["id"]): str(each["name"]) for each in found["categories"]}
            if len(classes) != len(found["categories"]):
                raise ValueError("two categories of one id")
            names = [str(each["file_name"]) for each in images]
            ids = [_id(each["id"]) for each in images]
            of_image = _by_image(annotations, set(ids))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"{self.path} is not an annotation file of COCO: {error!r}") from error
        index = {number: label for label, number in enumerate(sorted(classes))}
        listed = Listed[tuple[Found, ...]](self.path)
        kept: list[int] = []
        seen: set[int] = set()
        for line, (name, number, image) in enumerate(zip(names, ids, images, strict=True), start=1):
            try:
                if number in seen:
                    raise ValueError(f"image {number} is listed twice")
                seen.add(number)
                objects = _objects(image, of_image.get(number, ()), index)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                listed.refused.append((name, f"{self.path}, {name!r}: {error}"))
            else:
                listed.add(line, name, objects)
                kept.append(number)
        lines = dict(zip(listed.lines, kept, strict=True))
        listed.refuse_names()
        if not listed.names and not listed.refused:
            raise SourceError(f"{self.path} has no images")
        image_ids = np.array([lines[line] for line in listed.lines], "int64")
        return object_listing(
            self.root, listed, [classes[n] for n in sorted(classes)], "crowd", {"image_id": image_ids}
        )

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image with its objects."""
        return object_reader(self.root, listing)


def _id(value: object) -> int:
    if type(value) is not int or not -_MAX_ID <= value <= _MAX_ID:
        raise ValueError(f"{value!r} is not an id: expected a whole number")
    return value


def _by_image(annotations: list[Any], ids: set[int]) -> dict[int, list[Any]]:
    """Returns the annotations of each image; raises ValueError for one of no image."""
    found = defaultdict(list)
    for each in annotations:
        number = _id(each["image_id"])
        if number not in ids:
            raise ValueError(f"annotation {each.get('id')!r} is of image {number}, which is not listed")
        found[number].append(each)
    return found


def _objects(image: Any, annotations: Any, index: dict[int, int]) -> tuple[Found, ...]:
    """Returns the objects of an image; raises ValueError for one that is wrong."""
    found: dict[Any, Found] = {}
    for each in annotations:
        number = each.get("id", len(found))
        if number in found:
            raise ValueError(f"annotation {number!r} is listed twice")
        if each["category_id"] not in index:
            raise ValueError(f"annotation {number!r} is of category {each['category_id']!r}, which is not listed")
        left, top, width, height = map(float, each["bbox"])
        area, is_crowd = float(each.get("area", width * height)), bool(each.get("iscrowd", 0))
        box = Found(left, top, left + width, top + height, index[each["category_id"]], area, is_crowd)
        found[number] = within(box, float(image["width"]), float(image["height"]))
    for number, each in found.items():
        if not each.has_area:
            log.warning("annotation %r is left out: its box has no area", number)
    return tuple(each for each in found.values() if each.has_area)
