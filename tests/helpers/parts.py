"""Packing one image in parts."""

from __future__ import annotations

from pathlib import Path

import dlio
from dlio.dataset.manifest import Manifest, read_partial
from dlio.pack.inspect.verify import Damage, verify

IMAGE = "shard-000000.sqsh"


def pack_one(source, out: Path, **options) -> Manifest:
    """Packs a source into one image."""
    return dlio.pack(source, out, **({"format": "squashfs", "num_shards": 1, "engine": "serial"} | options))


def damage(out: Path) -> list[Damage]:
    """Returns the damage of a packed data set."""
    return verify(Manifest.load(out), workers=1)


def parts_listed(out: Path) -> list[str]:
    """Returns the finished parts of a stopped run."""
    return [shard.name for shard in read_partial(out).shards]
