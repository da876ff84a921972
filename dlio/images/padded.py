"""Windows that reach beyond their images: the rest of the result is filled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dlio.errors import UsageError
from dlio.images.checks import check_white, height_width
from dlio.images.windows import Around, OfSize, Sizes, Transform, Windows, boxes_of
from dlio.random_keys import Keys, uniform

Colour = int | tuple[int, int, int]

_MOST_PADDING = 1 << 15  # pixels


@dataclass(frozen=True, slots=True)
class RandomCrop(OfSize):
    """A random box of the result's size: torchvision's `RandomCrop(size, padding, pad_if_needed=True)`, and a flip.

    Attributes:
        size: height and width of the result; one number for a square.
        padding: pixels added on each side of the image first. An image that is still smaller than the result gets, on
            both sides, what it lacks. Of an image outside the box, nothing may be decoded, and no damage
            be found.
        flip: mirror half of the results.
        fill: the value of the pixels added, or of their three channels.
        white: as in RandomResizedCrop.

    Raises:
        UsageError: a size or `white` below 1, a padding below 0, or a fill that is not from 0 to 255.
    """

    size: int | tuple[int, int]
    padding: int = 0
    flip: bool = False
    fill: Colour = 0
    white: int | None = None

    def __post_init__(self) -> None:
        height_width(self.size)
        check_white(self.white)
        _check_padding(self.padding)
        check_fill("fill", self.fill)

    def plan(self, sizes: Sizes, keys: Keys) -> Windows:
        """Returns the part of each random box that lies in its image, and its place in the box."""
        wanted, numbers = np.array(self.output_size), uniform(keys, 3)
        added = self.padding + np.maximum(wanted - sizes - 2 * self.padding, 0)
        corners = np.floor(numbers[:, :2] * (sizes + 2 * added - wanted + 1)).astype(np.int64) - added
        begins, ends = np.clip(corners, 0, sizes), np.clip(corners + wanted, 0, sizes)
        shapes, offsets, flips = ends - begins, begins - corners, (numbers[:, 2] < 0.5) & self.flip
        offsets[flips, 1] = (wanted - offsets - shapes)[flips, 1]
        seen = shapes.all(axis=1, keepdims=True)
        places = None if (shapes == wanted).all() else boxes_of(offsets * seen, shapes * seen)
        boxes = boxes_of(np.minimum(begins, sizes - 1), np.maximum(shapes, 1))  # of one that is not seen, any pixels
        return Windows(boxes, flips, places=places, fill=self.fill)


@dataclass(frozen=True, slots=True)
class Pad(Around):
    """A transform with a margin around its results: torchvision's `Pad(padding, fill)` after it.

    Attributes:
        transform: plans the windows.
        padding: pixels added on each side.
        fill: their value, or that of their three channels.

    Raises:
        UsageError: `transform` is not a transform, changes pixels or targets or fills with another colour, a padding
            below 0, or a fill that is not from 0 to 255.
    """

    transform: Transform
    padding: int
    fill: Colour = 0

    def __post_init__(self) -> None:
        if isinstance(self.transform, type) or not isinstance(self.transform, Transform):
            raise UsageError(f"transform={self.transform!r} is not a transform of dlio.images, such as Resize(28)")
        if any(hasattr(self.transform, name) for name in ("effects", "masks")):
            raise UsageError(f"put Pad inside {type(self.transform).__name__}, not around it")
        if getattr(self.transform, "fill", self.fill) != self.fill:
            raise UsageError(f"fill={self.fill!r}: expected the fill of {self.transform!r}")
        _check_padding(self.padding)
        check_fill("fill", self.fill)

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of every result, in pixels."""
        height, width = self.transform.output_size
        return height + 2 * self.padding, width + 2 * self.padding

    def plan(self, sizes: Sizes, keys: Keys) -> Windows:
        """Returns the transform's windows, moved by the padding."""
        windows = self.transform.plan(sizes, keys)
        height, width = self.transform.output_size
        all_of_it = np.tile(np.array([0, 0, width, height], np.int32), (len(sizes), 1))
        places = all_of_it if windows.places is None else windows.places.copy()
        places[:, :2] += self.padding
        return replace(windows, places=places, fill=self.fill)


def _check_padding(padding: object) -> None:
    if not _is_whole(padding, _MOST_PADDING):
        raise UsageError(f"padding={padding!r}: expected a whole number of pixels from 0 to {_MOST_PADDING}")


def check_fill(name: str, fill: object) -> None:
    """Raises UsageError if this is not a pixel value."""
    values = fill if isinstance(fill, tuple) and len(fill) == 3 else (fill,)
    if not all(_is_whole(value, 255) for value in values):
        raise UsageError(f"{name}={fill!r}: expected a whole number from 0 to 255, or a tuple of three")


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) <= most
