"""Images of squashfs-tools."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def squashfuse(image: Path, folder: Path) -> Iterator[Path]:
    """Mounts an image by squashfuse_ll on a new folder."""
    folder.mkdir()
    subprocess.run(["squashfuse_ll", image, folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["fusermount3", "-u", folder], check=True)


@contextmanager
def loop_mount(image: Path, folder: Path) -> Iterator[Path]:
    """Mounts an image by the kernel on a new folder; skips the test where that cannot be."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", image, folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"needs a kernel with squashfs, loop devices and root: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
