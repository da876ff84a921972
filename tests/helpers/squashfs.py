"""Images of squashfs-tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def needs(*tools: str) -> pytest.MarkDecorator:
    """Returns the mark of a test that needs programs, or the device of an absolute path."""
    missing = [tool for tool in tools if not (Path(tool).exists() if tool.startswith("/") else shutil.which(tool))]
    return pytest.mark.skipif(
        bool(missing), reason=f"needs {', '.join(missing)}: apt-get install squashfs-tools squashfuse"
    )


def unsquashed(image: Path, out: Path) -> Path:
    """Returns the folder with all files of an image, as unsquashfs writes them."""
    subprocess.run(["unsquashfs", "-q", "-n", "-d", out, image], check=True, capture_output=True)
    return out


def squash(folder: Path, image: Path, *options: str) -> Path:
    """Returns the image that mksquashfs makes of a folder."""
    command = ["mksquashfs", folder, image, "-quiet", "-no-progress", *options]
    subprocess.run(command, check=True, capture_output=True)
    return image
