"""Transforms of images: each plans, for a batch of image sizes, the box of each image to take and whether to flip it.

A transform is plain data and its plan is pure; `dlio.codecs.decoders` carries it out while it decodes, so that only the
box is decoded and resized. Pixels stay uint8; normalise on the device, where it costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dlio.errors import UsageError
from dlio.images.checks import REACH, check_interpolation, check_white, height_width, is_pixels, is_range
from dlio.random_keys import Keys, uniform

Sizes = npt.NDArray[np.int64]
#: Where the pixels of a result come from: the point (a x + b y + c, d x + e y + f), in pixels.
Affine = tuple[float, float, float, float, float, float]

#: The value of white in grey images of 16 bits, as the formats define it; 255 in the result.
WHITE = 65535

NUM_TRIES = 10
_EVALUATION_SCALE = 256 / 224  # usual for ImageNet: shorter edge 256, centre 224


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The parts of the images of a batch to take.

    Attributes:
        boxes: left, top, width, height in the image's pixels; int32 of shape (n, 4).
        flips: whether to mirror left and right afterwards; bool of shape (n,).
        parts: left, top, width, height of the part of each box to resize, in pixels from its corner;
            float64 of shape (n, 4); None for all of it. The filter reaches into the rest of the box.
        places: left, top, width, height in the result, where it goes; int32 of shape (n, 4); None for all of it.
        fill: the value of the pixels outside the place, or of their three channels.
        interpolation: how they are resized: bilinear or bicubic, both antialiased, or nearest.
        moves: for each result the maps by which effects move its pixels, in their order; None for none.
    """

    boxes: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    parts: npt.NDArray[np.float64] | None = None
    places: npt.NDArray[np.int32] | None = None
    fill: int | tuple[int, int, int] = 0
    interpolation: str = "bilinear"
    moves: Sequence[Sequence[Affine]] | None = None


@runtime_checkable
class Transform(Protocol):
    """Plans boxes; immutable, picklable, safe for several threads. Any class with these two members fits."""

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of every result, in pixels."""

    def plan(self, sizes: Sizes, keys: Keys) -> Windows:
        """Returns the windows of n images.

        Args:
            sizes: height and width of each, at least 1; int64 of shape (n, 2).
            keys: a random key for each, uint64 of shape (n,); equal keys and sizes give equal windows.
        """


class Around:
    """The members that a transform which follows another one takes over from it.

    Attributes:
        transform: plans the windows.
    """

    __slots__ = ()
    transform: Transform

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of every result, in pixels."""
        return self.transform.output_size

    @property
    def white(self) -> int | None:
        """As the transform's."""
        return getattr(self.transform, "white", None)

    def plan(self, sizes: Sizes, keys: Keys) -> Windows:
        """Returns the transform's windows."""
        return self.transform.plan(sizes, keys)


class OfSize:
    """The member of a transform whose results have the size that it is given.

    Attributes:
        size: height and width of the result; one number for a square.
    """

    __slots__ = ()
    size: int | tuple[int, int]

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of every result, in pixels."""
        return height_width(self.size)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(OfSize):
    """A random box, resized: torchvision's transform of this name on PIL images, and its horizontal flip.

    Attributes:
        size: height and width of the result; one number for a square.
        scale: the smallest and largest share of the image's area.
        ratio: the smallest and largest width over height of the box.
        flip: mirror half of the images.
        white: the value that becomes 255 in grey images of 16 bits, such as 4095 for scans of 12 bits. Values are
            scaled linearly, and a greater one is an error of that image. Images of 8 bits stay unchanged.
        interpolation: bilinear or bicubic, both antialiased, or nearest.

    Raises:
        UsageError: a size or `white` below 1, bounds out of order, or another interpolation.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    white: int | None = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        height_width(self.size)
        check_white(self.white)
        check_interpolation(self.interpolation)
        for name, bounds in {"scale": self.scale, "ratio": self.ratio}.items():
            if not is_range(bounds):
                raise UsageError(f"{name}={bounds!r}: expected two numbers (low, high) with 0 < low <= high")

    def plan(self, sizes: Sizes, keys: Keys) -> Windows:
        """Returns random windows, distributed as torchvision's: ten tries, then the largest central box that fits."""
        numbers = uniform(keys, 2 * NUM_TRIES + 3)
        tries = numbers[:, : 2 * NUM_TRIES].reshape(-1, NUM_TRIES, 2)
        heights, widths = shapes_tried(sizes, self.scale, self.ratio, tries)
        fits = (widths > 0) & (widths <= sizes[:, 1:]) & (heights > 0) & (heights <= sizes[:, :1])
        rows, first = np.arange(len(sizes)), np.argmax(fits, axis=1)
        shapes = np.stack([heights[rows, first], widths[rows, first]], axis=1)
        left_over = sizes - shapes
        corners = np.floor(numbers[:, -3:-1] * (left_over + 1))
        failed = ~fits.any(axis=1)
        shapes[failed] = self._fallback(sizes[failed])
        corners[failed] = (sizes[failed] - shapes[failed]) // 2
        flips = (numbers[:, -1] < 0.5) & self.flip
        return Windows(boxes_of(corners, shapes), flips, interpolation=self.interpolation)

    def _fallback(self, sizes: Sizes) -> npt.NDArray[np.float64]:
        """Returns height and width of the largest boxes within the bounds of the ratio: float64 of shape (n, 2)."""
        heights, widths = sizes.T.astype(np.float64)
        low, high = self.ratio
        ratios = widths / heights
        heights = np.where(ratios < low, np.maximum(1, np.rint(widths / low)), heights)
        widths = np.where(ratios > high, np.maximum(1, np.rint(heights * high)), widths)
        return np.stack([np.minimum(heights, sizes[:, 0]), widths], axis=1)


@dataclass(frozen=True, slots=True)
class CenterCrop(OfSize):
    """The centre for evaluation: torchvision's `Resize(resize)` and `CenterCrop(size)` on PIL images, in one step.

    Attributes:
        size: height and width of the result; one number for a square.
        resize: the size of the shorter edge before the crop, or height and width; if not given 8/7 of the longer side
            of `size`, 256 for 224.
        white, interpolation: as in RandomResizedCrop.

    Raises:
        UsageError: a size or `white` below 1, a size before the crop below that of the crop, or another interpolation.
    """

    size: int | tuple[int, int]
    resize: int | tuple[int, int] | None = None
    white: int | None = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        check_white(self.white)
        check_interpolation(self.interpolation)
        wanted = height_width(self.size)
        if self.resize is None:
            return
        if isinstance(self.resize, (tuple, list)):
            fits = all(map(is_pixels, self.resize)) and np.greater_equal(height_width(self.resize), wanted).all()
        else:
            fits = is_pixels(self.resize) and self.resize >= max(wanted)
        if not fits:
            sizes = f"a whole number of at least {max(wanted)}, or a height and a width of at least {wanted}"
            raise UsageError(f"resize={self.resize!r}: expected {sizes}")

    def _resized(self, sizes: Sizes) -> Sizes:
        """Returns the sizes before the crop."""
        if isinstance(self.resize, (tuple, list)):
            return np.tile(np.array(self.resize, np.int64), (len(sizes), 1))
        shorter = self.resize or round(max(self.output_size) * _EVALUATION_SCALE)
        resized: Sizes = shorter * sizes // sizes.min(axis=1, keepdims=True)  # torchvision rounds the longer edge down
        return resized

    def plan(self, sizes: Sizes, keys: Keys) -> Windows:
        """Returns the centres, which begin and end between pixels; the keys play no part."""
        resized, size = self._resized(sizes), np.array(self.output_size)
        scales = sizes / resized
        begins = np.rint((resized - size) / 2) * scales
        # of the filter, beyond the edges of the outermost pixels
        reach = REACH[self.interpolation] * np.maximum(scales, 1) - scales / 2
        corners = np.maximum(np.floor(begins - reach), 0)
        shapes = np.minimum(np.ceil(begins + size * scales + reach), sizes) - corners
        lengths = np.minimum(size * scales, shapes - (begins - corners))  # rounding may end outside
        parts = np.concatenate([(begins - corners)[:, ::-1], lengths[:, ::-1]], axis=1)
        flips = np.zeros(len(sizes), dtype=np.bool_)
        return Windows(boxes_of(corners, shapes), flips, parts, interpolation=self.interpolation)


@dataclass(frozen=True, slots=True)
class Resize(OfSize):
    """The whole image, stretched to one size: torchvision's `Resize((height, width))`.

    Attributes:
        size: height and width of the result; one number for a square.
        white, interpolation: as in RandomResizedCrop.

    Raises:
        UsageError: a size or `white` below 1, or another interpolation.
    """

    size: int | tuple[int, int]
    white: int | None = None
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        height_width(self.size)
        check_white(self.white)
        check_interpolation(self.interpolation)

    def plan(self, sizes: Sizes, keys: Keys) -> Windows:
        """Returns windows over the whole images; the keys play no part."""
        flips = np.zeros(len(sizes), dtype=np.bool_)
        return Windows(boxes_of(np.zeros_like(sizes), sizes), flips, interpolation=self.interpolation)


def shapes_tried(
    sizes: Sizes, scale: tuple[float, float], ratio: tuple[float, float], numbers: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], ...]:
    """Returns heights and widths of boxes of random areas and ratios: float64 of shape (n, tries), whole numbers.

    Args:
        sizes: height and width of the images, int64 of shape (n, 2).
        scale: the bounds of a box's share of its image's area.
        ratio: the bounds of its width over its height.
        numbers: what decides, of [0, 1); float64 of shape (n, tries, 2).
    """
    low, high = scale
    areas = sizes.prod(axis=1, keepdims=True) * (low + (high - low) * numbers[:, :, 0])
    low, high = np.log(ratio)
    ratios = np.exp(low + (high - low) * numbers[:, :, 1])
    return np.rint(np.sqrt(areas / ratios)), np.rint(np.sqrt(areas * ratios))


def boxes_of(corners: npt.ArrayLike, shapes: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Returns left, top, width, height from (top, left) and (height, width): int32 of shape (n, 4)."""
    top_left, height_width = np.asarray(corners), np.asarray(shapes)
    return np.concatenate([top_left[:, ::-1], height_width[:, ::-1]], axis=1).astype(np.int32)
