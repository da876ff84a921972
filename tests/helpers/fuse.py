"""Mounts FUSE file systems whose servers are modules of tests/helpers."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def served(server: str, mounted: Path, *arguments: object) -> Iterator[None]:
    """Mounts what a server serves, or skips the test if that is not possible here."""
    try:
        importlib.import_module("mfusepy")
    except (ImportError, OSError) as error:
        pytest.skip(f"needs mfusepy and libfuse, pip install mfusepy and apt-get install fuse3: {error}")
    mounted.mkdir(exist_ok=True)
    command = [sys.executable, "-m", f"tests.helpers.{server}", str(mounted), *map(str, arguments)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        while not mounted.is_mount():
            if process.poll() is not None:
                pytest.skip("FUSE cannot be mounted here")
            time.sleep(0.01)
        yield
    finally:
        subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
        process.terminate()
        process.wait()
