"""The peers' packages, in their own folder: their pins, and a package called `tests`, would disturb others.

tools/setup.sh puts them there. Tests reach them in their own processes only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[2]
PEERS = Path(sys.prefix, "peers")
NO_NOISE = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}


def require(*names: str) -> None:
    """Skips a test if some of the peers are not installed."""
    missing = [name for name in names if not (PEERS / name).exists()]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: tools/setup.sh puts tests/peers/requirements.txt into {PEERS}")


def run(words: Sequence[object], environment: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Returns what a command prints that can import dlio, its tests and the peers; fails the test if it fails."""
    path = f"{ROOT}:{PEERS}"
    own = os.environ | NO_NOISE | {"PYTHONPATH": path} | dict(environment or {})
    with TemporaryDirectory() as short:  # pytest's own folders have paths too long for the sockets of worker processes
        ended = subprocess.run(
            [*map(str, words)], env=own | {"TMPDIR": short}, cwd=cwd, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout
