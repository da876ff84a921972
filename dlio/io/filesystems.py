"""The file system of a path: its type, whether other machines see it, and its free space.

Types come from /proc/self/mountinfo rather than from statfs numbers, since FUSE has one number for everything from
GlusterFS to sshfs, and mountinfo has the subtype. A tmpfs is memory: the job's cgroup limits its free space too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dlio.errors import StorageError
from dlio.io import files
from dlio.io.sizes import counted

# Seen by other machines. FUSE file systems count as shared unless known to be local: most of them are.
_SHARED = {
    "9p", "acfs", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs",
    "wekafs",
}  # fmt: skip
_LOCAL_FUSE = {"fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuse.squashfuse", "fuse.squashfuse_ll"}
_TELL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs"}  # syncfs on these tells of each write that failed
_TELLS_SINCE = (5, 8)  # of Linux: syncfs(2)
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}

# Variables in which schedulers name node-local storage, the most specific first; TMPDIR may be anything.
_LOCAL_VARIABLES = ("SLURM_TMPDIR", "LOCAL_SCRATCH", "PBS_JOBFS", "FLUX_JOB_TMPDIR", "LSB_JOB_TMPDIR", "TMPDIR")
_USUAL = ("/tmp", "/dev/shm")


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The file system under a path.

    Attributes:
        type: as the kernel calls it: "ext4", "lustre", "tmpfs", "fuse.sshfs".
        mount: where it is mounted.
        free_bytes: what this user can still write; for a tmpfs at most the memory that the job has left.
        free_files: how many more files fit; None if the file system has no such limit.
    """

    type: str
    mount: str
    free_bytes: int
    free_files: int | None

    @property
    def shared(self) -> bool:
        """Whether other machines see the same files."""
        return self.type in _SHARED or (self.type.startswith("fuse") and self.type not in _LOCAL_FUSE)

    @property
    def in_memory(self) -> bool:
        """Whether its files take memory."""
        return self.type in _IN_MEMORY

    def __str__(self) -> str:
        return f"{self.type} at {self.mount}"

    def check_room(self, path: Path, needed_bytes: int, needed_files: int) -> None:
        """Checks that a path on it has room for a number of bytes in a number of files.

        Raises:
            StorageError: it has no room for them; the message says what is needed and what is free.
        """
        if self.free_bytes < needed_bytes:
            raise StorageError(
                errno.ENOSPC,
                f"{path} ({self}) has {self.free_bytes:,} bytes free and {needed_bytes:,} are needed: "
                "free some space or choose another folder",
            )
        if self.free_files is not None and self.free_files < needed_files:
            raise StorageError(
                errno.ENOSPC,
                f"{path} ({self}) has room for {counted(self.free_files, 'more file')} and {needed_files:,} are needed"
                ": remove some files, choose another folder, or pack into larger shards",
            )


def filesystem_of(path: str | Path) -> FileSystem:
    """Returns the file system on which `path` lies, or will lie once it is made.

    Raises:
        StorageError: the path's status cannot be read.
    """
    there = existing(Path(path))
    kind, mount = mount_of(there, Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    with files.storage_errors("access", there):
        status = os.statvfs(there)
    free = status.f_bavail * status.f_frsize
    if kind in _IN_MEMORY:
        free = min(free, memory_left())
    return FileSystem(kind, mount, free, status.f_favail if status.f_files else None)


def existing(path: Path) -> Path:
    """Returns the innermost folder or file of `path` that exists, links resolved.

    Raises:
        StorageError: the path's status cannot be read.
    """
    with files.storage_errors("access", path):
        path = path.absolute()
        while not path.exists():
            path = path.parent
        return path.resolve()


def mount_of(path: Path, mountinfo: str) -> tuple[str, str]:
    """Returns type and mount point of the mount that holds the resolved `path`, from mountinfo's text (see proc(5))."""
    found, text = ("unknown", "/"), f"{path}/"
    for kind, mount in mounts(mountinfo):
        # Of several mounts on one folder the last covers the others.
        if len(mount) >= len(found[1]) and text.startswith(f"{mount}/" if mount != "/" else "/"):
            found = (kind, mount)
    return found


def mounts(mountinfo: str) -> Iterator[tuple[str, str]]:
    """Yields type and mount point of each mount, from mountinfo's text (see proc(5))."""
    for line in mountinfo.splitlines():
        mounted, _, described = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mounted.split(" ")[4])
        yield described.split(" ")[0], mount


def memory_left(root: Path = Path("/")) -> int:
    """Returns how many more bytes this process's job may hold in memory: the machine's and its cgroups' limits.

    Args:
        root: the folder under which `proc` and `sys` lie.
    """
    available = re.search(r"MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text())
    machine = int(available[1]) * 1024 if available else 2**63
    return min([machine, *_cgroup_rooms(root)])


def _cgroup_rooms(root: Path) -> Iterator[int]:
    """Yields the memory left in each cgroup around this process that limits memory; page cache counts as free."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / group.lstrip("/")
        for level in (folder, *folder.parents):
            if not level.is_relative_to(base):
                break
            total, held, cache = _number(level / limit), _number(level / used), _inactive_file(level / "memory.stat")
            if total is not None and held is not None:
                yield max(0, total - held + cache)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such controller here, or "max"
        return None


def _inactive_file(path: Path) -> int:
    try:
        found = re.search(r"^(?:total_)?inactive_file (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def local_folders(environ: Mapping[str, str] | None = None) -> Iterator[tuple[str, Path]]:
    """Yields the folders of this node that may serve as local storage, the best first, each with its origin.

    Folders that do not exist, cannot be written, or lie on a shared file system are left out.
    """
    environ = os.environ if environ is None else environ
    named = [(f"${name}", environ[name]) for name in _LOCAL_VARIABLES if environ.get(name)]
    seen: set[Path] = set()
    for why, name in (*named, *((name, name) for name in _USUAL)):
        folder = Path(name)
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and folder.resolve() not in seen:
            seen.add(folder.resolve())
            if not filesystem_of(folder).shared:
                yield why, folder


def sync_filesystem(folder: Path) -> bool:
    """Waits until all that was written to the file system of a folder is on the disk, far faster than file by file.

    Returns False, without waiting, where a write that failed would go unnoticed: each file must be synced.

    Raises:
        StorageError: a write failed.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if filesystem_of(folder).type not in _TELL or release is None or tuple(map(int, release.groups())) < _TELLS_SINCE:
        return False
    with files.storage_errors("sync", folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            syncfs(descriptor)
        finally:
            os.close(descriptor)
    return True


def syncfs(descriptor: int) -> None:
    """As syncfs(2); raises OSError."""
    if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
