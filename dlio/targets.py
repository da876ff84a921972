"""Boxes and masks that move with their image, when a transform of `dlio.images` crops, resizes and flips it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.errors import UsageError
from dlio.images import Effect, Transform, Windows, composed
from dlio.images.windows import Around

_AREAS = "areas"
Boxes = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WithTargets(Around):
    """A transform that also moves the boxes and masks of each image; for data sets of `coco`, `voc` and `masks`.

    Boxes stay float32 of shape (k, 4): left, top, right and bottom, in pixels of the result, cut off at its edges. A
    box of which less than `visible` is left is dropped, and with it its entry in each field of `along` whose arrays are
    of any length. `areas` shrink and grow with their boxes. A mask becomes an array of shape (height, width), of the
    pixel values that are nearest, never of mixed ones.

    Attributes:
        transform: plans the windows; may be a list of it and of effects.
        boxes: the field of boxes; '' for none.
        masks: the fields of masks, images of one channel.
        visible: the least share of a box that has to be left.
        along: the fields with one entry for each box.

    Raises:
        UsageError: `transform` is none, or `visible` is not from 0 to 1.
    """

    transform: Transform
    boxes: str = "boxes"
    masks: tuple[str, ...] = ()
    visible: float = 0.1
    along: tuple[str, ...] = ("labels", _AREAS, "crowd", "difficult")

    def __post_init__(self) -> None:
        object.__setattr__(self, "transform", composed(self.transform))
        if isinstance(self.transform, type) or not isinstance(self.transform, Transform):
            raise UsageError(f"transform={self.transform!r} is none of dlio.images: expected such as Resize(512)")
        if not 0 <= self.visible <= 1:
            raise UsageError(f"visible={self.visible!r}: expected a share from 0 to 1")

    @property
    def effects(self) -> tuple[Effect, ...]:
        """As the transform's."""
        return getattr(self.transform, "effects", ())

    def with_effects(self, effects: tuple[Effect, ...]) -> WithTargets:
        """Returns the same with more effects behind."""
        return replace(self, transform=composed([self.transform, *effects]))


def move_boxes(
    boxes: npt.ArrayLike, windows: Windows, row: int, output_size: tuple[int, int], visible: float = 0.0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Returns the boxes of image `row` within its window, which boxes these are, and how much of each area is left.

    Args:
        boxes: left, top, right, bottom in the image's pixels; shape (k, 4).
        windows: the windows of a batch.
        row: the image's row in the batch.
        output_size: height and width of the result.
        visible: the least share of a box that has to be left; a box of which nothing is left is always dropped.
    """
    given: Boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    left, top, width, height = windows.boxes[row].astype(np.float64)
    if windows.parts is not None:
        inner_left, inner_top, width, height = windows.parts[row]
        left, top = left + inner_left, top + inner_top
    place = (0, 0, *output_size[::-1]) if windows.places is None else windows.places[row].tolist()
    moved = (given - [left, top, left, top]) * ([place[2] / width, place[3] / height] * 2)
    if windows.flips[row]:
        moved[:, [0, 2]] = place[2] - moved[:, [2, 0]]
    seen = np.clip(moved, 0, place[2:] * 2)
    before, after = _areas(moved), _areas(seen)
    kept = np.flatnonzero((after > 0) & (after >= visible * before))
    return (seen[kept] + place[:2] * 2).astype(np.float32), kept, after[kept] / _areas(given)[kept]


def move_targets(transform: WithTargets, values: dict[str, Any], windows: Windows, row: int) -> dict[str, Any]:
    """Returns a sample's fields with moved boxes, and without the entries of those that were dropped.

    Raises:
        KeyError: there is no field of boxes.
    """
    if not transform.boxes:
        return values
    count = len(values[transform.boxes])
    boxes, kept, scales = move_boxes(values[transform.boxes], windows, row, transform.output_size, transform.visible)
    along = {name for name in transform.along if _is_along(values.get(name), count)}
    found = {name: value[kept] if name in along else value for name, value in values.items()}
    if _AREAS in along:
        found[_AREAS] = (found[_AREAS] * scales).astype(values[_AREAS].dtype)
    return found | {transform.boxes: boxes}


def _is_along(value: object, count: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and len(value) == count


def _areas(boxes: Boxes) -> Boxes:
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return np.asarray(sides.prod(axis=1))
