"""Small data sets to pack, and what a folder holds after a pack."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def open_tmp():
    """A folder that nobody may enter and read."""
    folder = Path(tempfile.mkdtemp(prefix="dlio-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
