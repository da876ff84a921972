"""Boxes within a window, cut off at its edges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dlio.errors import DataError
from dlio.images.windows import Affine, Windows

_LEAST_SIDE = 1.0  # pixels of a box that remains: the default of torchvision's SanitizeBoundingBoxes
_MOST_OUTSIDE = 1.0  # pixels that a box may reach over an edge, where annotations round
Boxes = npt.NDArray[np.float64]


def move_boxes(
    boxes: npt.ArrayLike, windows: Windows, row: int, output_size: tuple[int, int], visible: float = 0.0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], Boxes]:
    """Returns the boxes of image `row` within its window, which of them remain, and how much of each area is left.

    As torchvision's ClampBoundingBoxes and SanitizeBoundingBoxes: boxes are cut off at the edges, and one with a side
    of less than a pixel does not remain. A box that is sheared or rotated becomes the box around it.

    Args:
        boxes: left, top, right, bottom in the image's pixels; shape (k, 4).
        windows: the windows of a batch.
        row: the image's row in the batch.
        output_size: height and width of the result.
        visible: the least share of a box that must remain.
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
    whole, after, before = _areas(moved), _areas(seen), _areas(given)
    shares = np.divide(after, before, out=np.zeros_like(after), where=before > 0)
    seen += place[:2] * 2
    for move in () if windows.moves is None else windows.moves[row]:
        turned, scale = _enclosing(seen, move)
        seen = np.clip(turned, 0, output_size[::-1] * 2)
        areas = _areas(turned)
        left_of = np.divide(_areas(seen), areas, out=np.zeros_like(areas), where=areas > 0)
        after, shares = after * left_of, shares * left_of * scale
    remain = ((seen[:, 2:] - seen[:, :2]).astype(np.float32) >= _LEAST_SIDE).all(axis=1)
    remain &= after >= visible * whole
    return seen.astype(np.float32), remain, shares


def check_boxes(boxes: npt.ArrayLike, size: tuple[int, int]) -> None:
    """Raises DataError if boxes are not left, top, right, bottom in pixels of an image of (height, width) `size`."""
    given: Boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    limits = np.array([size[1], size[0]] * 2) + _MOST_OUTSIDE
    good = ((given >= -_MOST_OUTSIDE) & (given <= limits)).all(axis=1) & (given[:, 2:] >= given[:, :2]).all(axis=1)
    if not good.all():
        box = ", ".join(f"{side:g}" for side in given[~good][0])
        image = f"the image, {size[1]} x {size[0]} pixels"
        raise DataError(f"the box [{box}] is not (left, top, right, bottom) in pixels within {image}")
    if len(given) and given.max() <= 1 and (given % 1).any():
        raise DataError(f"the boxes {given.tolist()} are parts of the image's size: expected pixels")


def _areas(boxes: Boxes) -> Boxes:
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return np.asarray(sides.prod(axis=1))


def _enclosing(boxes: Boxes, move: Affine) -> tuple[Boxes, float]:
    """Returns the boxes around what a map moves the boxes to, and by how much it enlarges areas."""
    a, b, c, d, e, f = move
    scale = a * e - b * d  # of the way back, which the map is
    across, down = boxes[:, [0, 2, 2, 0]] - c, boxes[:, [1, 1, 3, 3]] - f
    columns, rows = (e * across - b * down) / scale, (a * down - d * across) / scale
    found = [columns.min(axis=1), rows.min(axis=1), columns.max(axis=1), rows.max(axis=1)]
    return np.stack(found, axis=1), 1 / abs(scale)
