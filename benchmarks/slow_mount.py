"""Compiles and mounts slow_mount.c, a view of a folder whose reads are slow."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOUNT_SECONDS = 10


@contextmanager
def mounted(
    folder: Path, mount: Path, milliseconds: float, megabytes: float = 0, counts: Path | None = None
) -> Iterator[Path]:
    """Mounts a view of a folder.

    Args:
        folder, mount: what is seen, and where; the mount point is made.
        milliseconds: of each read.
        megabytes: a second, for all readers together; 0 for no limit.
        counts: a file that holds the bytes read so far.
    """
    mount.mkdir(parents=True, exist_ok=True)
    limits = [str(megabytes), str(counts or os.devnull)]
    with tempfile.TemporaryDirectory() as built:
        server = subprocess.Popen([_compiled(Path(built)), folder, mount, str(milliseconds), *limits])
        deadline = time.monotonic() + MOUNT_SECONDS
        while not os.path.ismount(mount):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"cannot mount {mount}")
            time.sleep(0.01)
        try:
            yield mount
        finally:
            server.terminate()  # upon which it unmounts
            server.wait()
            subprocess.run(["umount", "-l", mount], check=False, stderr=subprocess.DEVNULL)  # if it did not by itself


def _compiled(folder: Path) -> Path:
    """Returns the program that mounts."""
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], stdout=subprocess.PIPE, text=True, check=True)
    program, source = folder / "slow_mount", Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-pthread", source, "-o", program, *flags.stdout.split()], check=True)
    return program
