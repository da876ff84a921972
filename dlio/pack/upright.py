"""Samples whose image is turned while it is packed: their boxes and masks turn with it."""

from __future__ import annotations

from dlio.codecs.orientation import AS_STORED, orientation_of, turn_boxes, turn_image
from dlio.dataset.schema import Fields, Schema
from dlio.errors import SourceError, UsageError
from dlio.pack.inspect.image_header import inspect_image


def check_fields(path: object, schema: Schema) -> None:
    """Raises UsageError if a field of the samples at `path` may have to turn with the image or not."""
    from dlio.targets import doubtful

    if names := doubtful(schema):
        raise UsageError(
            f"{path} has the field {names[0]!r} ({schema[names[0]]}), and dlio does not know whether it turns with the"
            " image: pack without --upright, and read with upright=True and dlio.targets.WithTargets"
        )


def orientation(data: bytes) -> int:
    """Returns the orientation of an encoded image; raises SourceError if its head is damaged."""
    from dlio.codecs import pillow

    try:
        return orientation_of(data)
    except pillow.ERRORS as error:
        raise SourceError(f"its EXIF cannot be read: {pillow.reason(error)}") from None


def with_turned_targets(fields: Fields, schema: Schema) -> Fields:
    """Returns the fields of a sample, whose image will be turned, with boxes and a mask that are turned.

    Raises:
        SourceError: the image or the mask is damaged.
    """
    if not ({"boxes", "mask"} & fields.keys()) or not isinstance(image := fields.get("image"), bytes):
        return fields
    if (turned := orientation(image)) == AS_STORED:
        return fields
    info, found = inspect_image(image), dict(fields)
    if "boxes" in fields:
        boxes = turn_boxes(fields["boxes"], turned, (info.height, info.width))
        found["boxes"] = boxes.reshape(fields["boxes"].shape).astype(schema["boxes"].dtype)
    if isinstance(mask := fields.get("mask"), bytes):
        found["mask"] = _turned_mask(mask, turned, (info.width, info.height))
    return found


def _turned_mask(mask: bytes, turned: int, size: tuple[int, int]) -> bytes:
    """Returns a mask as it is turned with its image of width and height `size`; one of another size unchanged."""
    from dlio.codecs import pillow

    try:
        with pillow.open_image(mask) as image:
            if image.size != size:
                return mask
            return pillow.encoded(turn_image(image, turned))
    except pillow.ERRORS as error:
        raise SourceError(f"its mask cannot be decoded: {pillow.reason(error)}") from None
