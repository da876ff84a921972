"""The limits of an input are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz import limits

ROOT = Path(__file__).parents[2]


def test_an_input_that_never_ends_is_ended(monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.05)
    with pytest.raises(limits.TooSlow), limits.limited_time():
        while True:
            pass


@pytest.mark.parametrize(("megabytes", "fits"), [(300, True), (600, False)])
def test_memory_is_bounded(megabytes, fits):
    code = f"from tools.fuzz.limits import limit_memory; limit_memory(); bytearray({megabytes} * 10**6)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == fits
    assert fits or "MemoryError" in ran.stderr
