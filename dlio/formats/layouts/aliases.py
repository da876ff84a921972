"""Names that other tools give to the fields `image` and `label`."""

from __future__ import annotations

from collections.abc import Collection

_ALIASES = {
    "image": ("image", "images", "img", "data", "x"),
    "label": ("label", "labels", "class", "target", "targets", "y"),
}


def stored_name(field: str, names: Collection[str]) -> str:
    """Returns which of `names` holds `field`: that name itself, else the first alias, else `field`."""
    return next((alias for alias in (field, *_ALIASES.get(field, ())) if alias in names), field)


def field_names(names: Collection[str]) -> dict[str, str]:
    """Returns, for each of `names`, the name of the field that it holds."""
    held = {stored_name(field, names): field for field in _ALIASES}
    return {name: held.get(name, name) for name in names}
