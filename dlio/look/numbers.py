"""Numbers that training needs of a data set: mean and standard deviation, sizes, class weights; kept next to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec

from dlio.dataset.location import STATS_NAME
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.io import files
from dlio.loaders.dataset import PackedSamples
from dlio.look.survey import Survey, survey
from dlio.pack.inspect.summary import percentiles, summarise

log = logging.getLogger(__name__)

MOST_SAMPLES = 20_000
_VERSION = 2  # 1 had no digest
_MOST_BYTES = 16 << 20
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[float, msgspec.Meta(ge=0)]


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds."""

    mean: tuple[_Number, _Number, _Number] | None
    std: tuple[_Number, _Number, _Number] | None
    heights: dict[str, _Count]
    widths: dict[str, _Count]
    class_weights: dict[str, _Number]
    samples_read: _Count
    images_decoded: _Count
    images_turned: _Count
    samples_damaged: _Count


def stats_of(manifest: Manifest, progress: Callable[[int, int], None]) -> dict[str, object]:
    """Returns the numbers of a data set, from the file next to its manifest if that is of the same content.

    `mean` and `std` are of red, green and blue, from 0 to 1, over images resized to 216 x 216; None if no image
    decodes. `heights` and `widths` are percentiles in pixels, as stored; EXIF turns
    `images_turned` of the images. `class_weights` are inverse to the classes' counts, and 1 on average over all labels.

    Raises:
        CorruptRecordError: a table of samples is damaged; damaged samples are counted.
        StorageError: the data set cannot be read.
    """
    path = manifest.root / STATS_NAME
    known = None if manifest.url else _read(path, manifest.content_id)
    if known is not None:
        return known
    with closing(PackedSamples(manifest)) as samples:
        looked = survey(samples, MOST_SAMPLES, progress)
    made = _numbers(looked, summarise(manifest).class_counts)
    if manifest.url or looked.damage:  # which may be repaired without changing its content
        return made
    kept = {"dlio": _VERSION, "content_id": manifest.content_id} | made
    try:
        files.publish_bytes(path, json.dumps(kept | {"digest": _digest(kept)}).encode())
    except StorageError as error:
        log.info("the numbers are not saved: %s", error.text)
    return made


def _numbers(looked: Survey, counts: dict[str, int]) -> dict[str, object]:
    sizes = looked.sizes[looked.sizes[:, 0] > 0]
    total, used = sum(counts.values()), sum(count > 0 for count in counts.values())
    weights = {name: round(total / (used * count), 6) if count else 0.0 for name, count in counts.items()}
    return {
        "mean": _rounded(looked.mean) if looked.num_decoded else None,
        "std": _rounded(looked.std) if looked.num_decoded else None,
        "heights": percentiles(sizes[:, 0]),
        "widths": percentiles(sizes[:, 1]),
        "class_weights": weights,
        "samples_read": len(looked.numbers),
        "images_decoded": looked.num_decoded,
        "images_turned": looked.num_turned,
        "samples_damaged": len(looked.damage),
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]


def _read(path: Path, content_id: str) -> dict[str, object] | None:
    """Returns the numbers in a file, None if it has none of this content: then they are computed again."""
    try:
        found = msgspec.json.decode(files.read_regular(path, _MOST_BYTES))
        if not isinstance(found, dict) or found.pop("digest", "") != _digest(found):
            return None
        if (found.pop("dlio", 0), found.pop("content_id", "")) != (_VERSION, content_id):
            return None
        kept = msgspec.convert(found, _Kept)
    except (StorageError, msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found if kept.images_decoded == 0 or (kept.mean and kept.std) else None


def _digest(kept: dict[str, object]) -> str:
    return files.digest_bytes(json.dumps(kept).encode())
