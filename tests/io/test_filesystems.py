"""What paths lie on, on this machine and on invented ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dlio.errors import StorageError
from dlio.io.filesystems import FileSystem, existing, filesystem_of, local_folders, memory_left, mount_of

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:50 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw
41 27 0:51 / /lustre/local rw - xfs /dev/nvme0n1 rw
42 27 0:52 / /with\040space rw - fuse.sshfs host: rw
43 27 0:53 / /mnt rw - autofs auto rw
44 27 0:54 / /mnt rw - nfs4 server:/x rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "mount"),
    [
        ("/home/a", "ext4", "/"),
        ("/lustre/x", "lustre", "/lustre"),
        ("/lustre2/x", "ext4", "/"),
        ("/lustre/local/x", "xfs", "/lustre/local"),
        ("/with space/x", "fuse.sshfs", "/with space"),
        ("/mnt/x", "nfs4", "/mnt"),
    ],
)
def test_the_mount_that_holds_a_path(path: str, kind: str, mount: str) -> None:
    assert mount_of(Path(path), MOUNTS) == (kind, mount)


def test_agrees_with_stat_about_real_mounts(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/proc"), Path("/dev/shm"), Path("/")):
        named = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout
        assert filesystem_of(path).type[:3] == named.strip()[:3]  # stat says "ext2/ext3" for ext4


@pytest.mark.parametrize(
    ("kind", "shared", "in_memory"),
    [
        ("ext4", False, False),
        ("lustre", True, False),
        ("tmpfs", False, True),
        ("nfs4", True, False),
        ("fuse.glusterfs", True, False),
        ("fuse", True, False),
        ("fuse.fuse-overlayfs", False, False),
        ("overlay", False, False),
        ("beegfs", True, False),
        ("gpfs", True, False),
    ],
)
def test_shared_and_in_memory(kind: str, shared: bool, in_memory: bool) -> None:
    system = FileSystem(kind, "/x", 1, None)
    assert (system.shared, system.in_memory) == (shared, in_memory)


def test_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path.resolve()
    assert filesystem_of(tmp_path / "a" / "b").mount == filesystem_of(tmp_path).mount


def test_a_link_leads_to_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    assert filesystem_of(tmp_path / "link" / "x").type == "tmpfs"


def machine(root: Path, cgroup: str, settings: dict[str, str]) -> Path:
    texts = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000 kB\n", "proc/self/cgroup": cgroup, **settings}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_left_without_limits(tmp_path: Path) -> None:
    assert memory_left(machine(tmp_path, "0::/a\n", {"sys/fs/cgroup/a/memory.max": "max\n"})) == 1_024_000


def test_memory_left_in_cgroup_2_counts_every_level(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/job"
    root = machine(tmp_path, "0::/job/step\n", {
        f"{base}/memory.max": "500000\n", f"{base}/memory.current": "400000\n",
        f"{base}/memory.stat": "anon 1\ninactive_file 30000\nactive_file 2\n",
        f"{base}/step/memory.max": "max\n", f"{base}/step/memory.current": "7\n",
    })  # fmt: skip
    assert memory_left(root) == 130_000


def test_memory_left_in_cgroup_1(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory/slurm"
    root = machine(tmp_path, "9:name=systemd:/\n4:memory:/slurm/step\n", {
        f"{base}/step/memory.limit_in_bytes": "90000\n", f"{base}/step/memory.usage_in_bytes": "95000\n",
        f"{base}/step/memory.stat": "inactive_file 1\ntotal_inactive_file 2000\n",
    })  # fmt: skip
    assert memory_left(root) == 0


def test_local_folders_in_order_without_shared_or_missing_ones(tmp_path: Path) -> None:
    for name in ("slurm", "tmp"):
        (tmp_path / name).mkdir()
    environ = {"TMPDIR": str(tmp_path / "tmp"), "SLURM_TMPDIR": str(tmp_path / "slurm"), "PBS_JOBFS": "/nowhere",
               "LOCAL_SCRATCH": "/proc/self/mountinfo"}  # fmt: skip
    found = list(local_folders(environ))
    assert found[:2] == [("$SLURM_TMPDIR", tmp_path / "slurm"), ("$TMPDIR", tmp_path / "tmp")]
    assert all(os.access(folder, os.W_OK) for _, folder in found)


def test_room_is_checked_with_figures(tmp_path: Path) -> None:
    system = filesystem_of(tmp_path)
    system.check_room(tmp_path, 1, 1)
    with pytest.raises(StorageError, match=r"bytes free and 1,000,000,000,000,000,000 are needed") as caught:
        system.check_room(tmp_path, 10**18, 1)
    assert caught.value.exit_code == 4
    with pytest.raises(StorageError, match="more files"):
        system.check_room(tmp_path, 1, 10**12)
