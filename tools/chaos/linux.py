"""What the acts need of Linux: private mounts, network namespaces, FUSE, and whether the machine has them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MPIEXEC = Path(sys.executable).with_name("mpiexec")
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), Path("/usr/lib/faketime/libfaketime.so.1"))
STRACE = ["strace", "-D", "-f", "-qq", "-o", "/dev/null"]  # the one that is traced stays our child
_CLONE_NEWNS = 0x00020000


def _can(*command: str) -> bool:
    return shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode


#: What an act may need, and how to find out whether it is here.
NEEDS: dict[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "mount namespaces": lambda: _can("unshare", "-m", "true"),
    "PID namespaces": lambda: _can("unshare", "-p", "-f", "--mount-proc", "true"),
    "network namespaces (iproute2)": lambda: _can("unshare", "-n", "ip", "link", "set", "lo", "up"),
    "nftables": lambda: _can("unshare", "-n", "nft", "add", "table", "inet", "chaos"),
    "FUSE (mfusepy, fuse3)": lambda: Path("/dev/fuse").exists() and importlib.util.find_spec("mfusepy") is not None,
    "faketime": FAKETIME.exists,
    "strace": lambda: _can(*STRACE, "true"),
    "mpiexec (mpich, mpi4py)": lambda: MPIEXEC.exists() and importlib.util.find_spec("mpi4py") is not None,
    "torch": lambda: importlib.util.find_spec("torch") is not None,
}


def keep_mounts_private() -> None:
    """Makes the mounts of this process and its children visible to them only, until they end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def mount_tmpfs(folder: Path, num_bytes: int, *options: str) -> None:
    """Mounts a file system in memory, or gives the one that is mounted another size, with a mode as /tmp has."""
    again = ["remount"] if os.path.ismount(folder) else []
    settings = ",".join([*again, f"size={num_bytes}", "mode=1777", *options])
    subprocess.run(["mount", "-t", "tmpfs", "-o", settings, "chaos", str(folder)], check=True)


def unmount_below(folder: Path) -> None:
    """Unmounts whatever is mounted in a folder, though it is in use."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed([path for path in mounted if Path(path).is_relative_to(folder)]):
        subprocess.run(["umount", "--lazy", mount], check=True)
