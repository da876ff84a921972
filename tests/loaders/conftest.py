"""Packed data sets to read, and the pictures that they were made of."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio import formats
from dlio.dataset.manifest import Manifest
from tests.loaders.photos import write_photos


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


@pytest.fixture(scope="session", params=formats.names())
def packed_anyhow(photos: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Manifest:
    """The photos in 7 shards of each format in turn."""
    out = tmp_path_factory.mktemp(request.param)
    return dlio.pack(dlio.sources.image_folder(photos), out, format=request.param, num_shards=7, engine="serial")
