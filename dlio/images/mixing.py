"""Mixup and CutMix: the images of a batch, and their labels, mixed with one another.

Each sample of a batch is mixed with the one before it, and the first one with the last. How much of it stays its own,
and which part, depends on the sample's key, as in all transforms. torchvision draws once for a whole batch instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dlio import native
from dlio.errors import UsageError
from dlio.images.checks import is_number, is_pixels
from dlio.random_keys import Keys, derive_each, uniform

Numbers = npt.NDArray[np.float64]

_TRIES = 8  # of which each is accepted in at least 95 of 100 cases
_WHOLE = 1 << 16  # the core's steps of a share


@dataclass(frozen=True, slots=True, eq=False)
class Mixing:
    """How the samples of a batch are mixed.

    Attributes:
        shares: of each label that stays, and of each pixel where there is no box; float64 of shape (n,).
        boxes: top, left, bottom, right of the part that is the other image's, empty for none; int32 of shape (n, 4).
    """

    shares: Numbers
    boxes: npt.NDArray[np.int32]


@runtime_checkable
class Mix(Protocol):
    """Mixes batches; immutable, picklable, safe for several threads. The last of a list of transforms may be one."""

    num_classes: int | None

    def draw(self, size: tuple[int, int], keys: Keys) -> Mixing:
        """Returns how n samples are mixed, whose images have a height and width; keys as an `Effect` gets them."""


@dataclass(frozen=True, slots=True)
class Mixup:
    """The weighted mean of two images and of their labels: torchvision's MixUp, on images of 8 bits.

    Labels become float32 vectors with a number for each class.

    Attributes:
        alpha: of the Beta distribution of the weights.
        num_classes: how many classes; by default those of the data set.

    Raises:
        UsageError: an alpha that is not above 0, or fewer than one class.
    """

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check(self.alpha, self.num_classes)

    def draw(self, size: tuple[int, int], keys: Keys) -> Mixing:
        """Returns the weights."""
        return Mixing(beta(keys, self.alpha), np.zeros((len(keys), 4), np.int32))


@dataclass(frozen=True, slots=True)
class CutMix:
    """A box of another image in each image, and their labels by their areas: torchvision's CutMix.

    Labels become float32 vectors with a number for each class.

    Attributes:
        alpha: of the Beta distribution of the share that stays, before the box is cut off at the image's edges.
        num_classes: how many classes; by default those of the data set.

    Raises:
        UsageError: as Mixup.
    """

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        _check(self.alpha, self.num_classes)

    def draw(self, size: tuple[int, int], keys: Keys) -> Mixing:
        """Returns the boxes, around any pixel."""
        sides, numbers = np.array(size), uniform(keys, 2)
        centres = np.floor(numbers * sides)
        halves = np.floor(0.5 * np.sqrt(1.0 - beta(derive_each(1, keys), self.alpha))[:, None] * sides)
        begins, ends = np.maximum(centres - halves, 0), np.minimum(centres + halves, sides)
        areas = (ends - begins).prod(axis=1)
        return Mixing(1.0 - areas / sides.prod(), np.concatenate([begins, ends], axis=1).astype(np.int32))


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """One of several ways to mix for each sample, as torchvision's RandomChoice for each batch.

    Attributes:
        mixes: such as (Mixup(0.2), CutMix(1.0)).

    Raises:
        UsageError: the list is empty, an entry is not a way to mix, or they name different numbers of classes.
    """

    mixes: Sequence[Mix]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mixes", tuple(self.mixes))
        if not self.mixes or not all(isinstance(mix, Mix) and not isinstance(mix, type) for mix in self.mixes):
            raise UsageError(f"RandomChoice({self.mixes!r}): expected ways to mix, such as Mixup(0.2) and CutMix(1.0)")
        if len({mix.num_classes for mix in self.mixes}) > 1:
            raise UsageError(f"RandomChoice({self.mixes!r}): expected one number of classes")

    @property
    def num_classes(self) -> int | None:
        """As of its mixes."""
        return self.mixes[0].num_classes

    def draw(self, size: tuple[int, int], keys: Keys) -> Mixing:
        """Returns what each sample's way draws."""
        chosen = (uniform(keys, 1)[:, 0] * len(self.mixes)).astype(np.int64)
        drawn = [mix.draw(size, derive_each(number + 1, keys)) for number, mix in enumerate(self.mixes)]
        rows = np.arange(len(keys))
        shares, boxes = np.stack([each.shares for each in drawn]), np.stack([each.boxes for each in drawn])
        return Mixing(shares[chosen, rows], boxes[chosen, rows])


def beta(keys: Keys, alpha: float) -> Numbers:
    """Returns a number of the distribution Beta(alpha, alpha) for each key: float64 of shape (n,)."""
    first, second = (_log_gamma(derive_each(number, keys), alpha) for number in (1, 2))
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * (first - second)))


def _log_gamma(keys: Keys, alpha: float) -> Numbers:
    """Returns the logarithm of a number of the gamma distribution for each key: Marsaglia and Tsang, 2000."""
    d = max(alpha, alpha + (alpha < 1)) - 1 / 3
    numbers = 1.0 - uniform(keys, 3 * _TRIES + 1)  # (0, 1]
    first, second, chance = numbers[:, :-1].reshape(-1, 3, _TRIES).transpose(1, 0, 2)
    normal = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
    cube = np.maximum(1 + normal / np.sqrt(9 * d), 1e-9) ** 3
    fits = np.log(chance) < 0.5 * normal**2 + d * (1 - cube + np.log(cube))
    found = np.log(d * cube[np.arange(len(keys)), np.argmax(fits, axis=1)])
    return np.asarray(found + np.log(numbers[:, -1]) / alpha if alpha < 1 else found)


def mix_batch(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.float32], mixing: Mixing) -> None:
    """Mixes a batch in place, by the core or, without it, by NumPy to the same bytes.

    Args:
        images: uint8 of shape (n, height, width, 3), in memory of either layout.
        labels: float32 of shape (n, classes).
        mixing: of n samples.
    """
    shares = mixing.shares[:, None]
    labels[...] = shares * labels + (1 - shares) * np.roll(labels, 1, axis=0)
    if native.available:
        native.mix_images(images, mixing.shares, mixing.boxes)
        return
    others = np.roll(images, 1, axis=0)
    for image, other, share, (top, left, bottom, right) in zip(
        images, others, mixing.shares, mixing.boxes.tolist(), strict=True
    ):
        if top < bottom and left < right:
            image[top:bottom, left:right] = other[top:bottom, left:right]
        else:
            weight = np.uint32(np.floor(share * _WHOLE + 0.5))
            image[...] = (image * weight + other * (np.uint32(_WHOLE) - weight) + np.uint32(_WHOLE // 2)) // _WHOLE


def _check(alpha: object, num_classes: object) -> None:
    if not is_number(alpha) or not 0 < alpha < float("inf"):
        raise UsageError(f"alpha={alpha!r}: expected a number above 0")
    if num_classes is not None and not is_pixels(num_classes):
        raise UsageError(f"num_classes={num_classes!r}: expected a whole number >= 1")
