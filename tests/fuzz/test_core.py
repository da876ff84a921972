"""The compiled core under AddressSanitizer and UndefinedBehaviorSanitizer, for some thousand inputs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.rounds import ROUNDS

RUN = Path(__file__).parents[2] / "tools" / "fuzz" / "run.sh"


@pytest.mark.jobs
@pytest.mark.skipif(shutil.which("clang++") is None, reason="libFuzzer needs clang")
def test_no_sanitizer_finds_anything_in_the_core(tmp_path):
    command = [RUN, tmp_path, f"-runs={2000 * ROUNDS}", "-seed=1"]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHON": sys.executable})
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert f"Done {2000 * ROUNDS} runs" in ran.stderr
