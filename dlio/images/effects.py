"""Effects change the pixels of images that are decoded, cropped and resized, or turn the images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from dlio.errors import UsageError
from dlio.images.checks import is_number, is_range
from dlio.images.operations import (
    NOTHING,
    SATURATION,
    Images,
    MovingEffect,
    Steps,
    carry_out,
    joined,
    move,
    quarter,
    toned,
)
from dlio.images.padded import Colour, check_fill
from dlio.images.windows import NUM_TRIES, shapes_tried
from dlio.random_keys import Keys, uniform

Amount = float | tuple[float, float]


@runtime_checkable
class Effect(Protocol):
    """Changes pixels; immutable, picklable, safe for several threads. Any class with this member fits."""

    def change(self, images: Images, keys: Keys) -> None:
        """Changes n images in place.

        Args:
            images: uint8 of shape (n, height, width, 3), in memory of either layout.
            keys: a random key for each, uint64 of shape (n,); equal keys and images give equal results.
        """


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Random brightness, contrast and saturation in random order: torchvision's transform of this name, without hue.

    Attributes:
        brightness, contrast, saturation: the bounds (low, high) of the factor, which is drawn evenly; a number is
            (1 - number, 1 + number), from 0 on.

    Raises:
        UsageError: a number below 0, or bounds out of order.
    """

    brightness: Amount = 0
    contrast: Amount = 0
    saturation: Amount = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _bounds(name, getattr(self, name))

    def change(self, images: Images, keys: Keys) -> None:
        """Changes images in place."""
        low, high = np.array([_bounds(name, getattr(self, name)) for name in self.__slots__]).T
        numbers = uniform(keys, 6)
        order = np.argsort(numbers[:, 3:], axis=1)  # 0, 1, 2 as the core's operations
        factors = np.take_along_axis(low + (high - low) * numbers[:, :3], order, axis=1)
        carry_out(images, toned(order, factors))


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Grey images of three equal channels: torchvision's `Grayscale(3)`, and with `p` its RandomGrayscale.

    Attributes:
        p: the share of images that become grey, chosen at random.

    Raises:
        UsageError: a share that is not from 0 to 1.
    """

    p: float = 1.0

    def __post_init__(self) -> None:
        check_share(self.p)

    def change(self, images: Images, keys: Keys) -> None:
        """Changes images in place."""
        stays = uniform(keys, 1) >= self.p
        carry_out(images, toned(np.full(stays.shape, SATURATION), stays))


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """A random box of one colour in some images: torchvision's transform of this name.

    It comes before you normalise, torchvision's usually after: the mean colour as `value`, such as (124, 116, 104), is
    which mean 0 there.

    Attributes:
        p: the share of images that lose a box.
        scale: the smallest and largest share of the image's area.
        ratio: the smallest and largest height over width of the box.
        value: of the pixels in the box, or of their three channels.

    Raises:
        UsageError: a share that is not from 0 to 1, bounds out of order, or a value that is not from 0 to 255.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: Colour = 0

    def __post_init__(self) -> None:
        check_share(self.p)
        check_fill("value", self.value)
        for name, bounds in {"scale": self.scale, "ratio": self.ratio}.items():
            if not is_range(bounds):
                raise UsageError(f"{name}={bounds!r}: expected two numbers (low, high) with 0 < low <= high")

    def change(self, images: Images, keys: Keys) -> None:
        """Changes images in place: after ten tries an image stays unchanged."""
        numbers, size = uniform(keys, 2 * NUM_TRIES + 3), np.array([images.shape[1:3]])
        tries = numbers[:, : 2 * NUM_TRIES].reshape(-1, NUM_TRIES, 2)
        widths, heights = shapes_tried(size, self.scale, self.ratio, tries)  # the ratio is height over width here
        shapes = np.stack([heights, widths], axis=2)
        fits = np.all(shapes < size, axis=2)
        shapes = shapes[np.arange(len(images)), np.argmax(fits, axis=1)]
        corners = np.floor(numbers[:, -3:-1] * (size - shapes + 1))
        boxes = np.concatenate([corners, corners + shapes], axis=1).astype(int)
        for row in np.flatnonzero(np.any(fits, axis=1) & (numbers[:, -1] < self.p)).tolist():
            top, left, bottom, right = boxes[row].tolist()
            images[row, top:bottom, left:right] = self.value


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip(MovingEffect):
    """Top and bottom exchanged in some images: torchvision's transform of this name.

    Attributes:
        p: the share of images that are flipped.

    Raises:
        UsageError: a share that is not from 0 to 1.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_share(self.p)

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns the flip of each image, or nothing."""
        flip = move((1.0, 0.0, 0.0, 0.0, -1.0, float(size[0])))
        return joined(([flip if number < self.p else NOTHING] for (number,) in uniform(keys, 1).tolist()), 1)


@dataclass(frozen=True, slots=True)
class RandomQuarterTurns(MovingEffect):
    """Images turned by 0, 90, 180 or 270 degrees, evenly; square results only."""

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns the turn of each image."""
        height, width = size
        if height != width:
            found = f"the transform's results have {height} x {width} pixels"
            raise UsageError(f"RandomQuarterTurns: {found}, expected square ones, such as {min(size)} x {min(size)}")
        turns = [NOTHING, *(move(quarter(number, height, width)) for number in (1, 2, 3))]
        return joined(([turns[int(4 * number)]] for (number,) in uniform(keys, 1).tolist()), 1)


def _bounds(name: str, amount: Amount) -> tuple[float, float]:
    """Returns the bounds of a factor; raises UsageError."""
    pair = amount
    if is_number(amount):
        pair = (max(0.0, 1 - amount), 1 + amount)
    if isinstance(pair, (tuple, list)) and is_range(pair, may_be_zero=True):
        return pair
    raise UsageError(f"{name}={amount!r}: expected a number >= 0, or two (low, high) with 0 <= low <= high")


def check_share(share: object) -> None:
    """Raises UsageError if this is not a share of images."""
    if not is_number(share) or not 0 <= share <= 1:
        raise UsageError(f"p={share!r}: expected a number from 0 to 1")
