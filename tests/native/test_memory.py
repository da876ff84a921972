"""Memory that a thread keeps from image to image."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dlio import native

NATIVE = Path(native.__file__).parent


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_nested_use_gets_memory_of_its_own(tmp_path: Path) -> None:
    source, program = Path(__file__).with_name("kept.cpp"), tmp_path / "kept"
    subprocess.run(["g++", "-std=c++17", f"-I{NATIVE}", source, "-o", program], check=True)
    run = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "")
