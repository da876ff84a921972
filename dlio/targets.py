"""Boxes and masks move with their image, when a transform of `dlio.images` crops, resizes and flips it.

Loaders do so without being asked. They know what a field is by its name and type:

    boxes, numbers of shape [?,4] or [4]                left, top, right, bottom in pixels of the image as stored
    mask, bytes                                         an encoded image of one channel or a palette
    labels, areas, crowd, difficult, of any length      one entry for each box

Numbers, text, `label` and `labels` do not move, and bytes do not move unless they hold an image. For any other field,
the
loader raises an error that names it: `WithTargets` says what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.codecs.orientation import turn_boxes
from dlio.dataset.schema import DECODE_READY_START, Field, Schema
from dlio.errors import DataError, UsageError
from dlio.images import Effect, Mix, Resize, Transform, Windows, composed
from dlio.images.boxes import check_boxes, move_boxes
from dlio.images.checks import is_pixels
from dlio.images.composed import mix_of
from dlio.images.windows import Around

IMAGE, LABEL, BOXES, MASK = "image", "label", "boxes", "mask"
_AREAS, _COUNT = "areas", "num_boxes"
_ALONG = ("labels", _AREAS, "crowd", "difficult")
_LABELS = (LABEL, "labels")
_IMAGE_HEADS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"II*\0", b"MM\0*", b"\x93NUMPY", DECODE_READY_START)


@dataclass(frozen=True, slots=True)
class WithTargets(Around):
    """A transform, and what the fields of the samples are, where their names do not say it.

    Attributes:
        transform: plans the windows; may be a list of it and of effects.
        boxes: the field of boxes.
        masks: more fields of masks.
        visible: the least share of a box that must remain in the window.
        along: more fields with one entry for each box.
        plain: the fields that do not change.
        max_boxes: pad boxes and their entries with zeros to this number, and add `num_boxes`, how many there are: these
            are arrays of one shape, as JAX needs them. A sample with more boxes is an error.

    Raises:
        UsageError: `transform` is not a transform, `visible` is not from 0 to 1, or `max_boxes` is below 1.
    """

    transform: Transform
    boxes: str = BOXES
    masks: tuple[str, ...] = ()
    visible: float = 0.0
    along: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    max_boxes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "transform", composed(self.transform))
        if isinstance(self.transform, type) or not isinstance(self.transform, Transform):
            raise UsageError(f"transform={self.transform!r} is not a transform of dlio.images, such as Resize(512)")
        if not 0 <= self.visible <= 1:
            raise UsageError(f"visible={self.visible!r}: expected a number from 0 to 1")
        if self.max_boxes is not None and not is_pixels(self.max_boxes):
            raise UsageError(f"max_boxes={self.max_boxes!r}: expected a whole number >= 1")
        for name in ("masks", "along", "plain"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))

    @property
    def effects(self) -> tuple[Effect, ...]:
        """As the transform's."""
        return getattr(self.transform, "effects", ())

    @property
    def mix(self) -> Mix | None:
        """As the transform's."""
        return mix_of(self.transform)

    def followed_by(self, more: Sequence[Effect | Mix]) -> WithTargets:
        """Returns the same with more effects after it."""
        return replace(self, transform=composed([self.transform, *more]))


@dataclass(frozen=True, slots=True)
class Targets:
    """The fields of a data set that move with the image.

    Attributes:
        boxes: the field of boxes, '' for none.
        are_dropped: whether boxes that are cut off are dropped; a fixed number of boxes stays.
        masks: the fields of masks.
        along: the fields with one entry for each box.
        unknown: the fields of bytes, which do not move, and must hold no image.
        visible: the least share of a box that must remain.
        most: how many boxes there are after padding; None for none.
    """

    boxes: str
    are_dropped: bool
    masks: tuple[str, ...]
    along: tuple[str, ...]
    unknown: tuple[str, ...]
    visible: float
    most: int | None = None

    def made(self, schema: Schema) -> dict[str, Field]:
        """Returns the types of boxes and their entries in batches."""
        if not self.boxes:
            return {}
        found = {self.boxes: Field("float32", schema[self.boxes].shape)}
        if self.most is None or not self.are_dropped:
            return found
        padded = {name: kind for name in self.along if (kind := schema[name]).is_number} | found
        made = {name: Field(kind.dtype, (self.most, *kind.shape[1:])) for name, kind in padded.items()}
        return made | {_COUNT: Field("int32")}

    @property
    def move(self) -> tuple[str, ...]:
        """The fields whose values change."""
        return (*((self.boxes,) if self.boxes else ()), *self.masks, *self.along)

    def check_unknown(self, columns: Mapping[str, Any], where: object) -> None:
        """Raises UsageError if a field of bytes of unknown meaning holds an image."""
        for name in self.unknown:
            for value in columns[name]:
                if any(_may_be_image(bytes(one[:16])) for one in (value if isinstance(value, list) else [value])):
                    raise UsageError(_question(name, Field("bytes"), f"{where}, whose images are transformed,"))


#: What a transform alone says of the fields.
_UNSAID = WithTargets(Resize(1))


def targets_of(schema: Schema, transform: Transform | None, where: object) -> Targets | None:
    """Returns what moves with the image under a transform; None if no field does.

    Raises:
        UsageError: a field of the data set `where` may move or not, or is not of the kind that WithTargets says.
    """
    if transform is None:
        return None
    given = transform if isinstance(transform, WithTargets) else _UNSAID
    _check_given(schema, given, where)
    found, rest = _sorted(schema, given)
    for name, kind in rest.items():
        if not _is_plain(name, kind, with_boxes=found.are_dropped):
            raise UsageError(_question(name, kind, where, with_boxes=found.are_dropped))
    return found if found.move or found.unknown else None


def leave_unknown(transform: Transform, schema: Schema) -> WithTargets:
    """Returns the transform for a measurement, in which fields of unknown meaning may stay unchanged."""
    return WithTargets(transform, plain=(*doubtful(schema), *_sorted(schema, _UNSAID)[0].unknown))


def doubtful(schema: Schema) -> tuple[str, ...]:
    """Returns the fields that may move with the image or not."""
    found, rest = _sorted(schema, _UNSAID)
    return tuple(name for name, kind in rest.items() if not _is_plain(name, kind, with_boxes=found.are_dropped))


def check_stay(schema: Schema, function: object, where: object) -> None:
    """Raises UsageError if samples have boxes or masks, which a function of the image alone would leave behind."""
    if fields := [repr(name) for name in _sorted(schema, _UNSAID)[0].move]:
        raise UsageError(
            f"transform={function!r} gets the image only, but {where} has {', '.join(fields)}, which have to move with"
            " it: give a transform of dlio.images, which moves them, or none, and transform whole samples in collate_fn"
        )


def _sorted(schema: Schema, given: WithTargets) -> tuple[Targets, dict[str, Field]]:
    """Returns what moves, and the other fields, which are not said to stay."""
    others = {name: kind for name, kind in schema.items() if name != IMAGE and name not in given.plain}
    boxes = given.boxes if given.boxes in others and _is_boxes(others[given.boxes]) else ""
    any_number = bool(boxes) and schema[boxes].shape[0] is None
    masks = tuple(name for name, kind in others.items() if name in (MASK, *given.masks) and _is_mask(kind))
    entries = (*_ALONG, *given.along) if any_number else ()
    along = tuple(name for name, kind in others.items() if name in entries and _is_list(kind))
    rest = {name: kind for name, kind in others.items() if name not in (boxes, *masks, *along)}
    unknown = tuple(name for name, kind in rest.items() if kind.dtype == "bytes")
    return Targets(boxes, any_number, masks, along, unknown, given.visible, given.max_boxes), rest


def _check_given(schema: Schema, given: WithTargets, where: object) -> None:
    """Raises UsageError if WithTargets names a field that does not exist or is of another kind."""
    boxes = () if given.boxes == BOXES else (given.boxes,)
    wanted = {"boxes": boxes, "masks": given.masks, "along": given.along, "plain": given.plain}
    fits: dict[str, Callable[[Field], object]]
    fits = {"boxes": _is_boxes, "masks": _is_mask, "along": _is_list, "plain": bool}
    types = {"boxes": "numbers of shape [?,4] or [4]", "masks": "bytes", "along": "a list of any length"}
    for option, names in wanted.items():
        for name in names:
            if name not in schema:
                raise UsageError(f"WithTargets({option}={name!r}): {where} has the fields {sorted(schema)}")
            if not fits[option](schema[name]):
                raise UsageError(
                    f"WithTargets({option}={name!r}): expected {types[option]}, in {where} it is {schema[name]}"
                )
    if given.max_boxes is not None:
        if given.boxes not in schema or schema[given.boxes].shape[:1] != (None,):
            raise UsageError(f"WithTargets(max_boxes={given.max_boxes}): {where} has no boxes of any number")
        if _COUNT in schema:
            raise UsageError(
                f"{where} has a field {_COUNT!r}, the name of what max_boxes= adds: leave it out with fields="
            )


def _is_boxes(kind: Field) -> bool:
    return kind.is_number and 1 <= len(kind.shape) <= 2 and kind.shape[-1] == 4


def _is_mask(kind: Field) -> bool:
    return kind.dtype == "bytes" and kind.is_scalar


def _is_list(kind: Field) -> bool:
    return bool(kind.shape) and kind.shape[0] is None


def _is_plain(name: str, kind: Field, *, with_boxes: bool) -> bool:
    """Returns whether a field cannot hold what moves, or only as bytes; lists may have an entry for each box."""
    if with_boxes and _is_list(kind):
        return False
    return kind.is_scalar or not kind.is_number or name in _LABELS


def _may_be_image(head: bytes) -> bool:
    """Returns whether bytes begin as an encoded image or an array of NumPy's does."""
    return head.startswith(_IMAGE_HEADS) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def _question(name: str, kind: Field, where: object, *, with_boxes: bool = False) -> str:
    """Returns the error of a field that may move, with the two ways out."""
    ways = ["boxes"] if _is_boxes(kind) else ["masks"] if _is_mask(kind) else []
    ways += ["along"] if with_boxes and _is_list(kind) else []
    moves = " or ".join(f"WithTargets(transform, {way}={name!r})" for way in ways)
    meaning = {"boxes": "left, top, right, bottom in pixels", "masks": "a mask", "along": "an entry for each box"}
    means = " or ".join(meaning[way] for way in ways)
    moves = f"{moves} if it is {means}" if ways else "no transform here, and one of your own that moves it too"
    return (
        f"{where} has a field {name!r} ({kind}); dlio does not know whether it moves with the image when a transform"
        f" crops, resizes or flips it: give WithTargets(transform, plain={name!r}) of dlio.targets if it stays as it"
        f" is, else {moves}"
    )


def move_targets(
    targets: Targets,
    values: Mapping[str, Any],
    windows: Windows,
    row: int,
    output_size: tuple[int, int],
    stored: tuple[int, tuple[int, int]],
) -> dict[str, Any]:
    """Returns the fields of a sample that change: moved boxes, and the entries of those that remain.

    Args:
        targets: what moves; masks are `dlio.codecs.decoders.decode_mask`'s.
        values: the sample's fields.
        windows: the windows of a batch.
        row: the image's row in the batch.
        output_size: height and width of the result.
        stored: the orientation of the image as it is stored, 1 if it is not turned; and height and width.

    Raises:
        DataError: the boxes are not within the image, or a field has another number of entries.
    """
    if not targets.boxes:
        return {}
    given = values[targets.boxes]
    check_boxes(given, stored[1])
    boxes, remain, shares = move_boxes(turn_boxes(given, *stored), windows, row, output_size, targets.visible)
    if not targets.are_dropped:
        return {targets.boxes: boxes.reshape(given.shape)}
    found: dict[str, Any] = {targets.boxes: boxes[remain]}
    for name in targets.along:
        if len(values[name]) != len(boxes):
            raise DataError(f"{name!r} has {len(values[name])} entries for {len(boxes)} boxes")
        value = values[name]
        found[name] = value[remain] if isinstance(value, np.ndarray) else [value[i] for i in np.flatnonzero(remain)]
    if _AREAS in targets.along:
        found[_AREAS] = (found[_AREAS] * shares[remain]).astype(values[_AREAS].dtype)
    return found if targets.most is None else _padded(found, found[targets.boxes], targets.most)


def _padded(values: dict[str, Any], boxes: npt.NDArray[np.float32], most: int) -> dict[str, Any]:
    """Returns arrays with zeros up to `most` entries, and how many entries there are; raises DataError for more."""
    if len(boxes) > most:
        raise DataError(f"{len(boxes)} boxes are more than max_boxes={most}: give more")
    padded = {
        name: np.pad(value, [(0, most - len(boxes))] + [(0, 0)] * (value.ndim - 1))
        for name, value in values.items()
        if isinstance(value, np.ndarray)
    }
    return values | padded | {_COUNT: np.int32(len(boxes))}
