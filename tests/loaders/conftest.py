"""Packed data sets to read, and the pictures that they were made of."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio import formats
from dlio.manifest import Manifest

NUM_PHOTOS = 41  # a prime, so that nothing divides evenly
CLASS_NAMES = ("ant", "bee", "cat")


def write_photos(folder: Path, count: int = NUM_PHOTOS, kind: str = "PNG") -> None:
    """Writes photos into class folders; the first pixel of each tells its number, wherever it ends up."""
    for number in range(count):
        name = CLASS_NAMES[number * len(CLASS_NAMES) // count]
        pixels = np.random.default_rng(number).integers(0, 255, (20 + number % 5, 24, 3), dtype=np.uint8)
        pixels[:4, :4] = number
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, kind)
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / f"{number:03}.{kind.lower()}").write_bytes(out.getvalue())


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 41 PNGs in 3 class folders, 20 to 24 pixels high, 24 wide."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder)
    return folder


@pytest.fixture(scope="session")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The photos in 7 TFRecord shards."""
    out = tmp_path_factory.mktemp("packed")
    return dlio.pack(dlio.sources.image_folder(photos), out, num_shards=7, engine="serial")


@pytest.fixture(scope="session")
def packed_as_recordio(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The photos in 7 RecordIO shards."""
    out = tmp_path_factory.mktemp("recordio")
    return dlio.pack(dlio.sources.image_folder(photos), out, format="recordio", num_shards=7, engine="serial")


@pytest.fixture(scope="session", params=formats.names())
def packed_anyhow(photos: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Manifest:
    """The photos in 7 shards of each format in turn."""
    out = tmp_path_factory.mktemp(request.param)
    return dlio.pack(dlio.sources.image_folder(photos), out, format=request.param, num_shards=7, engine="serial")
