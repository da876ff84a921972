"""What the tests of the simulator share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A source and a node with a copy."""
    return Scene(tmp_path)
