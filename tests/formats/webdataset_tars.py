"""WebDataset shards of labelled images, and tars of any members."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.formats import webdataset
from dlio.testing.container import read_all, write_all

JPEG = b"\xff\xd8\xff\xe0"


def write(folder: Path, samples: list[Sample], schema: Schema = IMAGE_CLASSIFICATION) -> Path:
    """Returns the path of a new shard."""
    write_all(webdataset.Writer(folder / "shard", schema), samples)
    return folder / "shard.tar"


def read(path: Path, schema: Schema = IMAGE_CLASSIFICATION) -> list[Sample]:
    """Returns all samples of a shard."""
    return read_all(webdataset.Reader(path, schema))


def labelled(keys: list[str]) -> list[Sample]:
    """Returns a sample of each key, whose label is its number."""
    return [Sample(key, {"image": JPEG + b"%d" % n, "label": n}) for n, key in enumerate(keys)]


def tar(path: Path, members: Iterable[tuple[str, bytes]], **options: Any) -> Path:
    """Returns the path of a new tar, which Python's tarfile has written."""
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
