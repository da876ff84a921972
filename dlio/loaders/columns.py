"""The fields of batches: what transforms make of the fields that are stored."""

from __future__ import annotations

from collections.abc import Sequence

from dlio.dataset.schema import Field, Schema
from dlio.errors import UsageError
from dlio.images import Mix, Transform
from dlio.images.composed import mix_of
from dlio.targets import IMAGE, LABEL, Targets, WithTargets


def narrowed(schema: Schema, fields: Sequence[str] | None, where: object) -> Schema:
    """Returns the schema of some fields, all if None; raises UsageError if the data set `where` lacks one."""
    if fields is None:
        return schema
    if isinstance(fields, str) or not fields or any(name not in schema for name in fields):
        raise UsageError(f"fields={fields!r}: expected names of {where}, which has {', '.join(schema)}")
    chosen = tuple((name, kind) for name, kind in schema.fields if name in fields)
    return Schema(chosen, schema.class_names, schema.label_offset)


def made_fields(
    schema: Schema, transform: Transform | None, targets: Targets | None, where: object
) -> dict[str, Field]:
    """Returns the types of a batch's fields; images have their channels last.

    Raises:
        UsageError: a transform mixes samples, but they have other fields than an image and a label of known classes.
    """
    made = dict(schema.fields)
    if transform is None:
        return made
    made[IMAGE] = Field("uint8", (*transform.output_size, 3))
    if targets is not None:
        made |= {name: Field("int32", transform.output_size) for name in targets.masks}
        made |= targets.made(schema)
    if (mix := mix_of(transform)) is not None:
        made[LABEL] = _mixed_label(schema, transform, mix, where)
    return made


def _mixed_label(schema: Schema, transform: Transform, mix: Mix, where: object) -> Field:
    """Returns the type of labels that are mixed."""
    named = f"{type(mix).__name__} mixes images and their labels"
    plain = transform.plain if isinstance(transform, WithTargets) else ()
    others = [name for name in schema if name not in (IMAGE, LABEL, *plain)]
    if others:
        raise UsageError(
            f"{named}, but {where} also has the field {others[0]!r}: leave it out with fields=('image', 'label'), or "
            "give"
            f" WithTargets(transform, plain={others[0]!r}) of dlio.targets if it is right for a mixture, too"
        )
    label = schema.get(LABEL)
    if label is not None and label.dtype.startswith("float") and label.is_fixed and len(label.shape) == 1:
        return Field("float32", label.shape)
    classes = mix.num_classes or len(schema.class_names)
    if label is None or not label.is_scalar or "int" not in label.dtype or not classes:
        found = "has no label" if label is None else f"has labels of type {label} and names {classes} classes"
        raise UsageError(f"{named}, but {where} {found}: expected class indices, and num_classes= if it names none")
    return Field("float32", (classes,))
