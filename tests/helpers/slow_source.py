"""A mounted view of a folder that is slow or fails, by benchmarks/slow_source.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "slow_source.py"


@contextmanager
def slow_mounts(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Yields a function that mounts a folder with options of slow_source.py; `counts` lies next to each mount."""
    servers: list[tuple[Path, subprocess.Popen[bytes]]] = []

    def mount(folder: Path, *options: str) -> Path:
        mounted = tmp_path / f"mount{len(servers)}"
        mounted.mkdir()
        counts = ["--counts", str(mounted.with_suffix(".counts"))]
        server = subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(mounted), *counts, *options])
        servers.append((mounted, server))
        while not mounted.is_mount():
            if server.poll() is not None:
                pytest.skip("FUSE cannot be mounted here")
            time.sleep(0.01)
        return mounted

    yield mount
    for mounted, server in servers:
        os.system(f"umount -l '{mounted}' 2>/dev/null || fusermount3 -u -z '{mounted}'")
        server.terminate()  # a process with a mount namespace of its own may still hold the mount
        server.wait()


def bytes_read(mounted: Path) -> int:
    """Returns what has been read from a source mounted by `slow_mounts`."""
    return int(mounted.with_suffix(".counts").read_text() or 0)
