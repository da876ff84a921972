"""TrivialAugmentWide, RandAugment and AutoAugment: torchvision's policies, drawn from the keys of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dlio.errors import UsageError
from dlio.images.checks import is_pixels
from dlio.images.operations import NOTHING, MovingEffect, Step, Steps, check_moves, joined, step_of
from dlio.images.padded import Colour
from dlio.random_keys import Keys, uniform

#: The largest magnitudes of operations that have a sign, and the bits that Posterize takes away at most.
Space = dict[str, float]

_OPERATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
    "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
_WIDE: Space = {
    "ShearX": 0.99, "ShearY": 0.99, "TranslateX": 32.0, "TranslateY": 32.0, "Rotate": 135.0,
    "Brightness": 0.99, "Color": 0.99, "Contrast": 0.99, "Sharpness": 0.99, "Posterize": 6,
}  # fmt: skip
_USUAL: Space = {
    "ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0,
    "Brightness": 0.9, "Color": 0.9, "Contrast": 0.9, "Sharpness": 0.9, "Posterize": 4,
}  # fmt: skip
_SHIFT = 150.0 / 331.0  # of the image's side, the largest of the usual space
_UNSIGNED = ("Posterize", "Solarize")
_AUTO_BINS = 10

#: AutoAugment's policy for ImageNet: operation, share of images, bin; of each image one line.
_IMAGENET = (
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 0), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 0)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 0)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 0), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 0)),
    (("Equalize", 0.0, 0), ("Equalize", 0.8, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 0)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 0)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 0)),
    (("Equalize", 0.4, 0), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 0)),
    (("Invert", 0.6, 0), ("Equalize", 1.0, 0)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 0), ("Equalize", 0.6, 0)),
)


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide(MovingEffect):
    """One operation for each image, of any magnitude: torchvision's transform of this name.

    It draws one of 14 operations evenly, one of the magnitudes evenly, and a sign.

    Attributes:
        num_magnitude_bins: how many magnitudes an operation has.
        interpolation: how pixels are moved, nearest or bilinear.
        fill: the value of the pixels that come from outside, or of their three channels.

    Raises:
        UsageError: fewer than two magnitudes, another interpolation, or a fill that is not from 0 to 255.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Colour = 0

    def __post_init__(self) -> None:
        _check_bins(self.num_magnitude_bins)
        check_moves(self.interpolation, self.fill)

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns one operation for each image."""
        numbers = uniform(keys, 3)
        operations = (numbers[:, 0] * len(_OPERATIONS)).astype(int).tolist()
        bins = (numbers[:, 1] * self.num_magnitude_bins).astype(int).tolist()
        negative = (numbers[:, 2] < 0.5).tolist()
        rows = zip(operations, bins, negative, strict=True)
        return joined(([self._step(_OPERATIONS[i], number, sign, size)] for i, number, sign in rows), 1)

    def _step(self, name: str, number: int, negative: bool, size: tuple[int, int]) -> Step:
        magnitude = magnitudes(name, self.num_magnitude_bins, _WIDE.get(name, 0.0))[number]
        return step_of(name, _signed(name, magnitude, negative), size, self.interpolation, self.fill)


@dataclass(frozen=True, slots=True)
class RandAugment(MovingEffect):
    """Some operations for each image, one after the other, of one magnitude: torchvision's transform of this name.

    It draws each of 14 operations evenly, and a sign.

    Attributes:
        num_ops: how many operations.
        magnitude: the number of the magnitude, from 0.
        num_magnitude_bins: how many magnitudes an operation has.
        interpolation, fill: as TrivialAugmentWide's.

    Raises:
        UsageError: as TrivialAugmentWide; no operations, or no such magnitude.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: Colour = 0

    def __post_init__(self) -> None:
        _check_bins(self.num_magnitude_bins)
        check_moves(self.interpolation, self.fill)
        if not is_pixels(self.num_ops):
            raise UsageError(f"num_ops={self.num_ops!r}: expected a whole number >= 1")
        if not is_pixels(self.magnitude + 1) or self.magnitude >= self.num_magnitude_bins:
            raise UsageError(f"magnitude={self.magnitude!r}: expected 0 to {self.num_magnitude_bins - 1}")

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns `num_ops` operations for each image."""
        numbers = uniform(keys, 2 * self.num_ops)
        operations = (numbers[:, : self.num_ops] * len(_OPERATIONS)).astype(int).tolist()
        negative = (numbers[:, self.num_ops :] < 0.5).tolist()
        rows = (
            [self._step(_OPERATIONS[i], sign, size) for i, sign in zip(*row, strict=True)]
            for row in zip(operations, negative, strict=True)
        )
        return joined(rows, self.num_ops)

    def _step(self, name: str, negative: bool, size: tuple[int, int]) -> Step:
        magnitude = magnitudes(name, self.num_magnitude_bins, _usual(name, size))[self.magnitude]
        return step_of(name, _signed(name, magnitude, negative), size, self.interpolation, self.fill)


@dataclass(frozen=True, slots=True)
class AutoAugment(MovingEffect):
    """One of 25 pairs of operations for each image: torchvision's transform of this name, with ImageNet's policy.

    It draws a pair evenly; each of its operations is carried out by its share, with a sign.

    Attributes:
        interpolation, fill: as TrivialAugmentWide's.

    Raises:
        UsageError: another interpolation, or a fill that is not from 0 to 255.
    """

    interpolation: str = "nearest"
    fill: Colour = 0

    def __post_init__(self) -> None:
        check_moves(self.interpolation, self.fill)

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns two operations for each image, which may be to do nothing."""
        numbers = uniform(keys, 5)
        lines = (numbers[:, 0] * len(_IMAGENET)).astype(int).tolist()
        return joined(
            (
                [
                    self._step(name, number, sign < 0.5, size) if chance <= share else NOTHING
                    for (name, share, number), chance, sign in zip(_IMAGENET[line], row[1:3], row[3:5], strict=True)
                ]
                for line, row in zip(lines, numbers.tolist(), strict=True)
            ),
            2,
        )

    def _step(self, name: str, number: int, negative: bool, size: tuple[int, int]) -> Step:
        magnitude = magnitudes(name, _AUTO_BINS, _usual(name, size))[number]
        return step_of(name, _signed(name, magnitude, negative), size, self.interpolation, self.fill)


def _usual(name: str, size: tuple[int, int]) -> float:
    """Returns the largest magnitude of RandAugment and AutoAugment."""
    if name in ("TranslateX", "TranslateY"):
        return _SHIFT * size[1 if name == "TranslateX" else 0]
    return _USUAL.get(name, 0.0)


def _signed(name: str, magnitude: float, negative: bool) -> float:
    return -magnitude if negative and name not in _UNSIGNED else magnitude


@lru_cache(1024)
def magnitudes(name: str, count: int, largest: float) -> tuple[float, ...]:
    """Returns the magnitudes of an operation: torchvision's, in the precision of its float32 tensors.

    There are `count`, at least 2; the last is `largest`, for Posterize the number of bits it takes away.
    """
    if name == "Posterize":
        taken = np.round(np.arange(count, dtype=np.float32) / np.float32((count - 1) / largest))
        return tuple((8 - taken).tolist())
    first, last = np.float32(255 if name == "Solarize" else 0), np.float32(0 if name == "Solarize" else largest)
    step, numbers = float((last - first) / np.float32(count - 1)), np.arange(count)
    from_first, from_last = first + step * numbers, last - step * numbers[::-1]  # as torch.linspace, which fuses these
    return tuple(np.where(numbers < count // 2, from_first, from_last).astype(np.float32).tolist())


def _check_bins(count: object) -> None:
    if not is_pixels(count) or count == 1:
        raise UsageError(f"num_magnitude_bins={count!r}: expected a whole number >= 2")
