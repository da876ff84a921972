"""YOLO: a folder with `images` and `labels`, a text file for each image, and the class names in `data.yaml`.

    images/train/a.jpg + labels/train/a.txt, or train/images/a.jpg + train/labels/a.txt, or without splits

    boxes   float32[?,4]   left, top, right, bottom in pixels; YOLO has centre, width and height as parts of the image
    labels  int64[]        class indices
    areas   float32[]      in pixels, of the box, or of the polygon that a line gives instead of a box
    crowd   bool[]         as in COCO; here all False

An image without a text file has no objects. YOLO's boxes are those of the upright image; they become those of the image
as it is stored. An image is refused whose lines are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from dlio.codecs.orientation import turn_boxes, turned_size
from dlio.dataset.schema import Sample
from dlio.errors import DlioError, SourceError, UsageError, missing_package
from dlio.io.files import read_regular
from dlio.pack.inspect.image_header import inspect_image
from dlio.pack.listing.base import Listing, Refused
from dlio.pack.listing.classes import SPLITS
from dlio.pack.listing.image_tree import images_below
from dlio.pack.listing.lists import Listed
from dlio.pack.listing.objects import ObjectBox, object_listing, object_reader
from dlio.pack.prefetch import side_by_side
from dlio.pack.upright import orientation

IMAGES, LABELS, CONFIG = "images", "labels", "data.yaml"
_MAX_BYTES = 16 << 20
_INVERSE = {6: 8, 8: 6}  # of an orientation; others undo themselves


def yolo(path: str | Path, split: str = "") -> Yolo:
    """Returns the images of a folder of YOLO with their objects.

    Args:
        path: the folder, or its `data.yaml`.
        split: the split to take of several, such as `train`.
    """
    path = Path(path).absolute()
    return Yolo(path.parent if path.suffix == ".yaml" else path, split)


open_source = yolo


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with `images` and `labels`, or with `data.yaml`, or that file."""
    return path.name == CONFIG or (path / CONFIG).is_file() or ((path / IMAGES).is_dir() and (path / LABELS).is_dir())


@dataclass(frozen=True, slots=True)
class Yolo:
    """See `yolo`."""

    path: Path
    split: str
    name: str = "yolo"

    def _folders(self) -> tuple[Path, Path]:
        """Returns the folders of the images and of the labels; raises UsageError, SourceError."""
        places = {f"{IMAGES}/{split}": split for split in SPLITS} | {f"{split}/{IMAGES}": split for split in SPLITS}
        found = {split: place for place, split in sorted(places.items()) if (self.path / place).is_dir()}
        if (self.split or not found) and not (self.path / (found.get(self.split) or IMAGES)).is_dir():
            raise SourceError(
                f"{self.path} has no folder {IMAGES}, nor train/{IMAGES}: give the folder of the data set"
            )
        if self.split and self.split not in found:
            raise UsageError(f"{self.path} has no split {self.split!r}, only {', '.join(sorted(found)) or 'one part'}")
        if len(found) > 1 and not self.split:
            raise UsageError(f"{self.path} holds the splits {', '.join(sorted(found))}: give one with --option split=")
        place = found.get(self.split) or next(iter(found.values()), IMAGES)
        return self.path / place, self.path / place.replace(IMAGES, LABELS)

    def listing(self) -> Listing:
        """Returns the images in the order of their paths; a key is the path below `images`."""
        images, labels = self._folders()
        names, is_pose = self._config()
        refused = Refused()
        paths = sorted(images_below(images, refused))
        listed = Listed[tuple[ObjectBox, ...]](images, refused=refused)

        def parsed(name: str) -> tuple[ObjectBox, ...] | str:
            return _objects(labels / PurePosixPath(name).with_suffix(".txt"), len(names), is_pose)

        for line, (name, objects) in enumerate(zip(paths, side_by_side(parsed, paths), strict=True), start=1):
            if isinstance(objects, str):
                listed.refused.append((name, objects))
            else:
                listed.add(line, name, objects)
        listed.refuse_names()
        if not listed.names and not listed.refused:
            raise SourceError(f"{images} has no images")
        return object_listing(images, listed, names, "crowd", {})

    def _config(self) -> tuple[list[str], bool]:
        """Returns the class names, if the folder has some, and whether lines have the points of a pose."""
        path = self.path / CONFIG
        if not path.is_file():
            return [], False
        try:
            import yaml
        except ImportError as error:
            raise missing_package("pyyaml", "yolo", f"reading {path}") from error
        try:
            text = read_regular(path, _MAX_BYTES)
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
                raise ValueError("it has aliases, by which few bytes can stand for any number: write them out")
            found = yaml.safe_load(text)
            names = found.get("names", [])
            ordered = names if isinstance(names, list) else [names[number] for number in range(len(names))]
            return list(map(str, ordered)), "kpt_shape" in found
        except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise SourceError(f"{path}: expected a list of class names as 'names': {error!r:.200}") from error

    @contextmanager
    def reader(self, listing: Listing) -> Iterator[Callable[[int], Sample]]:
        """Gives a function that reads one image with its objects."""
        images, _ = self._folders()
        with object_reader(images, listing) as read:
            yield lambda index: _in_pixels(images, read(index))


def _in_pixels(images: Path, sample: Sample) -> Sample:
    """Returns a sample with boxes in pixels of the image as it is stored."""
    fields = sample.fields
    try:
        info, turned = inspect_image(fields["image"]), orientation(fields["image"])
    except SourceError as error:
        raise SourceError(f"{images / sample.key}: {error}") from None
    height, width = turned_size((info.height, info.width), turned)
    boxes = fields["boxes"] * [width, height, width, height]
    stored = turn_boxes(boxes, _INVERSE.get(turned, turned), (height, width))
    areas = (fields["areas"] * (width * height)).astype("float32")
    return Sample(sample.key, fields | {"boxes": stored.astype("float32"), "areas": areas})


def _objects(path: Path, num_classes: int, is_pose: bool) -> tuple[ObjectBox, ...] | str:
    """Returns the objects of a text file, as parts of the image, or why its image is refused."""
    try:
        lines = read_regular(path, _MAX_BYTES).decode().splitlines() if path.exists() else []
        return tuple(_object(line.split(), num_classes, is_pose) for line in lines if line.strip())
    except (ValueError, OSError, OverflowError, DlioError) as error:
        return f"{path}: {error}"


def _object(fields: list[str], num_classes: int, is_pose: bool) -> ObjectBox:
    label, numbers = int(fields[0]), [float(field) for field in fields[1:]]
    if label < 0 or (num_classes and label >= num_classes):
        raise ValueError(f"the class {label} is not one of the {num_classes} in {CONFIG}")
    if not all(math.isfinite(number) and 0 <= number <= 1 for number in numbers):
        raise ValueError(f"line {' '.join(fields)!r:.80}: expected numbers from 0 to 1, as parts of the image")
    if len(numbers) == 4 or (is_pose and len(numbers) > 4):
        x, y, width, height = numbers[:4]
        box = max(0.0, x - width / 2), max(0.0, y - height / 2), min(1.0, x + width / 2), min(1.0, y + height / 2)
        return ObjectBox(*box, label, (box[2] - box[0]) * (box[3] - box[1]), False)
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError(f"line {' '.join(fields)!r:.80}: expected a class and 4 numbers, or a polygon")
    points = list(zip(numbers[::2], numbers[1::2], strict=True))
    twice = sum(one[0] * two[1] - two[0] * one[1] for one, two in pairwise([*points, points[0]]))
    across, down = zip(*points, strict=True)
    return ObjectBox(min(across), min(down), max(across), max(down), label, abs(twice) / 2, False)
