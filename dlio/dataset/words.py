"""A data set in words: the `repr` of manifests and loaders, and the first entries of reports."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from dlio.io.sizes import counted, format_size
from dlio.urls import without_credentials

if TYPE_CHECKING:
    from dlio.dataset.manifest import Manifest


def in_a_line(manifest: Manifest) -> str:
    """Returns what a data set holds and where."""
    fields = ", ".join(f"{name}: {kind}" for name, kind in manifest.schema.types().items())
    classes = f", {len(manifest.class_names):,} classes" if manifest.class_names else ""
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.shards), "shard")
    size = f"{samples} ({fields}{classes}) in {shards}"
    location = without_credentials(str(manifest.root))
    return f"{size} of {manifest.format}, {format_size(manifest.num_bytes)}, at {location}"


def in_html(shown: object) -> str:
    """Returns the `repr` of an object, for notebooks."""
    return f"<code>{html.escape(repr(shown))}</code>"


def describe(manifest: Manifest) -> dict[str, Any]:
    """Returns the entries at the beginning of every report on a packed data set.

    The bytes of a selection are those of its samples, by the mean size of each shard's records. Its files have more.
    """
    own = sum(shard.num_bytes * shard.num_samples // max(1, shard.num_records) for shard in manifest.shards)
    has_parts = any(shard.part is not None for shard in manifest.shards)
    return {
        "format": manifest.format,
        "schema": manifest.schema.types(),
        "samples": manifest.num_samples,
        "bytes": own if has_parts else manifest.num_bytes,
        **({"bytes_of_files": manifest.num_bytes} if has_parts else {}),
        "shards": len(manifest.shards),
        "classes": len(manifest.class_names),
        "skipped": len(manifest.skipped),
        "content_id": manifest.content_id,
    }
