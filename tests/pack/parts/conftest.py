"""Photos that make four parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlio.pack.parts import plan
from dlio.testing.images import make_image_folder
from tests.helpers.packing import content
from tests.helpers.parts import pack_one


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(plan, "PART_BYTES", 100_000)


@pytest.fixture
def photos(tmp_path) -> Path:
    """36 BMPs of 4 to 13 kB in three classes: four parts."""
    for number in range(3):
        make_image_folder(tmp_path / "photos", {f"class {number}": 12}, width=20 + 24 * number, height=64, kind="BMP")
    return tmp_path / "photos"


@pytest.fixture
def whole(photos, tmp_path) -> dict:
    """What a run that nothing stopped has written."""
    pack_one(photos, tmp_path / "whole", shuffle=1)
    return content(tmp_path / "whole")
