"""A data set in words, for people: the `repr` of manifests and loaders."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from dlio.io.sizes import counted, format_size
from dlio.urls import without_credentials

if TYPE_CHECKING:
    from dlio.dataset.manifest import Manifest


def in_a_line(manifest: Manifest) -> str:
    """Returns what a data set holds and where."""
    fields = ", ".join(f"{name}: {kind}" for name, kind in manifest.schema.types().items())
    classes = f", {len(manifest.class_names):,} classes" if manifest.class_names else ""
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.shards), "shard")
    place = without_credentials(str(manifest.root))
    size = f"{samples} ({fields}{classes}) in {shards}"
    return f"{size} of {manifest.format}, {format_size(manifest.num_bytes)}, at {place}"


def in_html(shown: object) -> str:
    """Returns the `repr` of an object, for notebooks."""
    return f"<code>{html.escape(repr(shown))}</code>"
