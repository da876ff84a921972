"""COCO: a JSON file of images, annotations and categories, and a folder of the images.

    boxes     float32[?,4]   left, top, right, bottom in pixels; COCO has left, top, width, height
    labels    int64[]        class indices from 0, in the order of the categories' ids, which have gaps
    areas     float32[]      in pixels, as COCO has them
    crowd     bool[]         whether an annotation stands for several objects
    image_id  int64          COCO's number of the image, for its evaluation
    mask      bytes          with `masks`, a PNG of the segmentations: see `dlio.pack.listing.objects`

Annotations of no area are left out, with a log message. An image is refused whose annotations are wrong: of an unknown
category, twice the same, or with a box that reaches over the image's edge by more than a pixel.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SourceError, UsageError
from dlio.io.files import read_regular
from dlio.pack.inspect.image_header import inspect_image
from dlio.pack.listing.base import Listing
from dlio.pack.listing.file_sets import begins_with
from dlio.pack.listing.lists import Listed
from dlio.pack.listing.objects import MAX_CLASSES, ObjectBox, class_mask, object_listing, object_reader, within

log = logging.getLogger(__name__)
_HEAD_BYTES, _MAX_BYTES = 4 << 10, 4 << 30
_MAX_ID = 1 << 62
_MOST_FILES, _SHOWN = 64, 6  # of a folder
_MASKS = "classes"
_SEGMENTS = "segments"  # the column of a listing: each image's size and objects, as JSON


def coco(path: str | Path, root: str | Path | None = None, masks: str = "") -> Coco:
    """Returns the images of an annotation file with their objects.

    Args:
        path: the file, such as `annotations/instances_train2017.json`; or a folder that holds one such file, or has it
            in its folder `annotations`.
        root: the folder of the images; by default `train2017` or `images` next to the file or next to its folder, else
            the file's folder.
        masks: `classes` makes a mask of classes of each image's segmentations.

    Raises:
        UsageError: there are no such masks, or the folder holds no such file, or several.
    """
    if masks not in ("", _MASKS):
        raise UsageError(f"masks={masks!r}: expected {_MASKS}, or nothing")
    path = Path(path).absolute()
    if path.is_dir():
        path = _only_file(path)
    return Coco(path, Path(root).absolute() if root is not None else _root(path), bool(masks))


def _root(path: Path) -> Path:
    names = (path.stem.rpartition("_")[2], f"images/{path.stem.rpartition('_')[2]}", "images")
    folders = (folder / name for folder in (path.parent.parent, path.parent) for name in names)
    return next((folder for folder in folders if folder.is_dir()), path.parent)


open_source = coco


def recognises(path: Path) -> bool:
    """Returns whether `path` is a JSON file whose beginning has images or annotations, or a folder with such a file."""
    if path.is_dir():
        return any(_annotation_files(path))
    head = _head(path)
    return any(word in head for word in (b'"images"', b'"annotations"', b'"licenses"'))


def _head(path: Path) -> bytes:
    return begins_with(path, _HEAD_BYTES) if path.suffix == ".json" else b""


def _annotation_files(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder that are surely annotations of COCO: it may as well be one of class folders."""
    for path in sorted(islice(chain(folder.glob("*.json"), folder.glob("annotations/*.json")), _MOST_FILES)):
        head = _head(path)
        if (b'"images"' in head and b'"file_name"' in head) or (b'"annotations"' in head and b'"category_id"' in head):
            yield path


def _only_file(folder: Path) -> Path:
    files = list(_annotation_files(folder))
    if len(files) != 1:
        found = ", ".join(str(path.relative_to(folder)) for path in files[:_SHOWN]) or "none"
        advice = "give one such file, or --source imagefolder if the folders are classes"
        raise UsageError(f"{folder} holds {len(files)} annotation files of COCO ({found}): {advice}")
    return files[0]


@dataclass(frozen=True, slots=True)
class Coco:
    """See `coco`."""

    path: Path
    root: Path
    has_masks: bool = False
    name: str = "coco"

    def listing(self) -> Listing:
        """Returns the images in the order of the file; a key is the image's path below the root."""
        images, names, ids, of_image, classes = self._annotations()
        index = {number: label for label, number in enumerate(sorted(classes))}
        if self.has_masks and len(index) > MAX_CLASSES:
            raise SourceError(
                f"{self.path} has {len(index)} categories, and a mask can hold {MAX_CLASSES}: pack without masks"
            )
        listed = Listed[tuple[ObjectBox, ...]](self.path)
        kept: list[tuple[int, bytes]] = []
        seen: set[int] = set()
        for line, (name, number, image) in enumerate(zip(names, ids, images, strict=True), start=1):
            try:
                if number in seen:
                    raise ValueError(f"image {number} is listed twice")
                seen.add(number)
                objects = _objects(image, of_image.get(number, ()), index)
                segments = _segments(image, of_image.get(number, ()), index) if self.has_masks else b""
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                listed.refused.append((name, f"{self.path}, {name!r}: {error}"))
            else:
                listed.add(line, name, objects)
                kept.append((number, segments))
        lines = dict(zip(listed.lines, kept, strict=True))
        listed.refuse_names()
        if not listed.names and not listed.refused:
            raise SourceError(f"{self.path} has no images")
        image_ids = np.array([lines[line][0] for line in listed.lines], "int64")
        names = [classes[n] for n in sorted(classes)]
        made = object_listing(self.root, listed, names, "crowd", {"image_id": image_ids})
        return _with_masks(made, [lines[line][1] for line in listed.lines]) if self.has_masks else made

    def _annotations(self) -> tuple[list[Any], list[str], list[int], dict[int, list[Any]], dict[int, str]]:
        """Returns the images, their names and ids, the annotations of each id, and the names of the categories."""
        try:
            found = json.loads(read_regular(self.path, _MAX_BYTES))
            images, annotations = list(found["images"]), list(found["annotations"])
            classes = {_id(each["id"]): str(each["name"]) for each in found["categories"]}
            if len(classes) != len(found["categories"]):
                raise ValueError("two categories with the same id")
            names = [str(each["file_name"]) for each in images]
            ids = [_id(each["id"]) for each in images]
            return images, names, ids, _by_image(annotations, set(ids)), classes
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"{self.path} is not an annotation file of COCO: {error!r}") from error

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Gives a function that reads one image with its objects."""
        segments = listing.columns.get(_SEGMENTS)
        with object_reader(self.root, listing) as read:
            yield read if segments is None else lambda index: _with_mask(read(index), segments[index])


def _with_masks(listing: Listing, segments: list[bytes]) -> Listing:
    column = np.empty(len(segments), dtype=object)
    column[:] = segments
    schema = Schema.of(listing.schema.types() | {"mask": "bytes"}, listing.schema.class_names)
    columns = dict(listing.columns) | {_SEGMENTS: column}
    return replace(listing, schema=schema, columns=columns, image_fields=("image", "mask"))


def _with_mask(sample: Sample, segments: bytes) -> Sample:
    """Returns a sample with the mask of its objects; raises SourceError."""
    told = json.loads(segments)
    image = inspect_image(bytes(sample.fields["image"]))
    try:
        if told["size"] != [image.height, image.width]:
            raise ValueError(f"it is {image.width} x {image.height}, its annotation says {told['size'][::-1]}")
        mask = class_mask(told["objects"], image.height, image.width)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise SourceError(f"no mask of {sample.key!r}: {error}") from error
    return Sample(sample.key, sample.fields | {"mask": mask})


def _segments(image: Any, annotations: Any, index: dict[int, int]) -> bytes:
    objects = [(index[each["category_id"]], bool(each.get("iscrowd", 0)), each["segmentation"]) for each in annotations]
    return json.dumps({"size": [image["height"], image["width"]], "objects": objects}).encode()


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


def _objects(image: Any, annotations: Any, index: dict[int, int]) -> tuple[ObjectBox, ...]:
    """Returns the objects of an image; raises ValueError for one that is wrong."""
    found: dict[Any, ObjectBox] = {}
    for each in annotations:
        number = each.get("id", len(found))
        if number in found:
            raise ValueError(f"annotation {number!r} is listed twice")
        if each["category_id"] not in index:
            raise ValueError(f"annotation {number!r} is of category {each['category_id']!r}, which is not listed")
        left, top, width, height = map(float, each["bbox"])
        area, is_crowd = float(each.get("area", width * height)), bool(each.get("iscrowd", 0))
        box = ObjectBox(left, top, left + width, top + height, index[each["category_id"]], area, is_crowd)
        found[number] = within(box, float(image["width"]), float(image["height"]))
    for number, each in found.items():
        if not each.has_area:
            log.warning("annotation %r is left out: its box has no area", number)
    return tuple(each for each in found.values() if each.has_area)
