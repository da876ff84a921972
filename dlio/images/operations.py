"""The operations of TrivialAugmentWide, RandAugment and AutoAugment, byte for byte as torchvision's on PIL images.

    Identity                                nothing
    ShearX, ShearY, TranslateX, TranslateY, Rotate
                                            move pixels; what comes from outside has its own colour
    Brightness, Color, Contrast, Sharpness  a factor of 1 + magnitude, as Pillow's ImageEnhance
    Posterize, Solarize                     bits that are kept; values from a threshold on are inverted
    AutoContrast, Equalize, Invert          no magnitude

A `Steps` says what to do to each image of a batch. It is planned apart from the pixels, so that boxes and masks move by
the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dlio import native
from dlio.errors import UsageError
from dlio.images.padded import Colour, check_fill
from dlio.images.windows import Affine
from dlio.random_keys import Keys

Images = npt.NDArray[np.uint8]
#: An operation of the core, and its numbers.
Step = tuple[int, tuple[float, ...]]

SATURATION = 2  # the core's number of the operation; 0 is brightness, 1 contrast
_TONES = {"Brightness": 0, "Contrast": 1, "Color": SATURATION, "Sharpness": 3}
_POSTERIZE, _SOLARIZE, _AUTOCONTRAST, _EQUALIZE = 4, 5, 6, 7
_MOVES = {"nearest": 8, "bilinear": 9}
_NONE = 10
_NUM_NUMBERS = 9
_MOST_FACTOR = 1e6  # of a tone: beyond it no byte changes any more
_WITHOUT_MAGNITUDE = {"Identity": _NONE, "AutoContrast": _AUTOCONTRAST, "Equalize": _EQUALIZE}

NOTHING: Step = (_NONE, (0.0,) * _NUM_NUMBERS)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What to do to each image of a batch, one operation after the other.

    Attributes:
        operations: the core's numbers; uint8 of shape (n, k).
        numbers: what each operation needs, as `dlio.native.augment` says; float64 of shape (n, k, 9).
    """

    operations: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float64]

    def moves(self, row: int) -> list[Affine]:
        """Returns the maps that move the pixels of an image, in their order."""
        steps = zip(self.operations[row].tolist(), self.numbers[row].tolist(), strict=True)
        return [(a, b, c, d, e, f) for operation, (a, b, c, d, e, f, *_) in steps if operation in _MOVES.values()]


@runtime_checkable
class MovingEffect(Protocol):
    """An `Effect` that moves pixels also says where to, so that boxes and masks move with them."""

    __slots__ = ()

    def steps(self, size: tuple[int, int], keys: Keys) -> Steps:
        """Returns what `change` does to n images of (height, width) `size`; raises UsageError where it cannot."""

    def change(self, images: Images, keys: Keys) -> None:
        """Changes images in place."""
        carry_out(images, self.steps(images.shape[1:3], keys))


def joined(rows: Iterable[Sequence[Step]], count: int) -> Steps:
    """Returns the steps of n images, `count` for each."""
    steps = [step for row in rows for step in row]
    operations = np.array([operation for operation, _ in steps], np.uint8)
    numbers = np.array([numbers for _, numbers in steps], np.float64)
    return Steps(operations.reshape(-1, count), numbers.reshape(-1, count, _NUM_NUMBERS))


def toned(operations: npt.NDArray[np.int64], factors: npt.NDArray[np.float64 | np.bool_]) -> Steps:
    """Returns the steps of n images that change brightness, contrast or saturation; both of shape (n, k)."""
    numbers = np.zeros((*factors.shape, _NUM_NUMBERS))
    numbers[:, :, 0] = np.minimum(factors, _MOST_FACTOR)
    return Steps(operations.astype(np.uint8), numbers)


@lru_cache(4096)
def step_of(name: str, magnitude: float, size: tuple[int, int], interpolation: str, fill: Colour) -> Step:
    """Returns an operation of torchvision's as the core carries it out on images of (height, width) `size`."""
    if name in _WITHOUT_MAGNITUDE:
        return _step(_WITHOUT_MAGNITUDE[name])
    if name in _TONES:
        return _step(_TONES[name], 1.0 + magnitude)
    if name == "Posterize":
        return _step(_POSTERIZE, int(magnitude))
    if name in ("Solarize", "Invert"):
        return _step(_SOLARIZE, magnitude if name == "Solarize" else 0.0)
    place = _place_of(name, magnitude, size)
    return NOTHING if place is None else move(place, interpolation, fill)


def move(place: Affine, interpolation: str = "nearest", fill: Colour = 0) -> Step:
    """Returns the operation that moves pixels."""
    colour = fill if isinstance(fill, tuple) else (fill,) * 3
    return _step(_MOVES[interpolation], *place, *colour)


def _step(operation: int, *numbers: float) -> Step:
    return operation, (*map(float, numbers), *(0.0,) * (_NUM_NUMBERS - len(numbers)))


def _place_of(name: str, magnitude: float, size: tuple[int, int]) -> Affine | None:
    """Returns where an operation's pixels come from, as torchvision and Pillow compute it; None if they stay."""
    height, width = size
    if name == "Rotate":
        return _rotated(magnitude % 360.0, height, width)
    if name in ("TranslateX", "TranslateY"):
        shift = int(magnitude)
        return (1.0, 0.0, -shift if name == "TranslateX" else 0.0, 0.0, 1.0, -shift if name == "TranslateY" else 0.0)
    angle = math.radians(math.degrees(math.atan(magnitude)))
    if name == "ShearX":
        return (1.0, math.tan(angle), 0.0, 0.0, 1.0, 0.0)
    # torchvision's _get_inverse_affine_matrix with this shear; its products of cosines are 1 except for the last bit
    cosine, sine = math.cos(-angle), math.sin(-angle)
    return (
        -sine * math.tan(0.0) / math.cos(angle) + 1.0,
        0.0,
        0.0,
        -sine / math.cos(angle),
        cosine / math.cos(angle),
        0.0,
    )


def _rotated(angle: float, height: int, width: int) -> Affine | None:
    """Returns where the pixels of Pillow's `Image.rotate(angle)` come from."""
    if angle == 0:
        return None
    if angle == 180 or (angle in (90, 270) and width == height):
        return quarter(int(angle) // 90, height, width)
    radians = -math.radians(angle)
    cosine, sine = round(math.cos(radians), 15), round(math.sin(radians), 15)
    centre_x, centre_y = width / 2, height / 2
    right = cosine * -centre_x + sine * -centre_y + 0.0 + centre_x
    down = -sine * -centre_x + cosine * -centre_y + 0.0 + centre_y
    return (cosine, sine, right, -sine, cosine, down)


def quarter(number: int, height: int, width: int) -> Affine:
    """Returns where the pixels of an image come from that is turned by `number` quarters to the left."""
    places: list[Affine] = [
        (1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        (0.0, -1.0, float(width), 1.0, 0.0, 0.0),
        (-1.0, 0.0, float(width), 0.0, -1.0, float(height)),
        (0.0, 1.0, 0.0, -1.0, 0.0, float(height)),
    ]
    return places[number]


def check_moves(interpolation: str, fill: Colour) -> None:
    """Raises UsageError if pixels cannot be moved so."""
    if interpolation not in _MOVES:
        raise UsageError(f"interpolation={interpolation!r}: expected {' or '.join(_MOVES)}")
    check_fill("fill", fill)


def carry_out(images: Images, steps: Steps) -> None:
    """Changes images in place by the core or, without it, by Pillow, to the same bytes; as `Effect.change`."""
    if native.available:
        native.augment(images, steps.operations, steps.numbers)
        return
    from PIL import Image

    for pixels, operations, numbers in zip(images, steps.operations.tolist(), steps.numbers.tolist(), strict=True):
        image = Image.fromarray(np.ascontiguousarray(pixels))
        for operation, values in zip(operations, numbers, strict=True):
            image = _by_pillow(image, operation, values)
        pixels[...] = np.asarray(image)


def _by_pillow(image: Any, operation: int, numbers: list[float]) -> Any:
    """Returns Pillow's image after an operation."""
    from PIL import Image, ImageEnhance, ImageOps

    if operation in _TONES.values():
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, ImageEnhance.Sharpness)
        return enhancers[operation](image).enhance(numbers[0])
    if operation in _MOVES.values():
        resample = Image.Resampling.NEAREST if operation == _MOVES["nearest"] else Image.Resampling.BILINEAR
        fill = tuple(map(int, numbers[6:]))
        return image.transform(image.size, Image.Transform.AFFINE, numbers[:6], resample, fillcolor=fill)
    if operation == _POSTERIZE:
        return ImageOps.posterize(image, int(numbers[0])) if numbers[0] else Image.new("RGB", image.size)
    if operation == _SOLARIZE:
        return ImageOps.solarize(image, numbers[0])  # type: ignore[arg-type]  # a float as well
    if operation == _AUTOCONTRAST:
        return ImageOps.autocontrast(image)
    return ImageOps.equalize(image) if operation == _EQUALIZE else image
