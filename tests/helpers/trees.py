"""Folders of all kinds of files, and what a copy of one has to hold."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

LARGE = 200_000  # bytes: more than a file that comes as one piece
TIME = 981_173_106_123_456_789  # in ns


def make_tree(root: Path, *, small: int = 20, seed: int = 0) -> Path:
    """Returns a folder with large and small files, links, strange names, and their own modes and times."""
    contents = random.Random(seed)
    (root / "bin").mkdir(parents=True)
    (root / "empty" / "inner").mkdir(parents=True)
    for name in ("x", "x.new", "x.blocks", "bin/tool"):  # the names that a copy could give its own files
        (root / name).write_bytes(contents.randbytes(LARGE + len(name)))
    for number in range(small):
        (root / f"small-{number:03d}").write_bytes(contents.randbytes(number * 37 % 5000))
    for name in (b"new\nline", b"\xff\xfe", b" ", "naïve".encode(), b'"', b"-rf"):
        (root / os.fsdecode(name)).write_bytes(name)
    (root / "bin" / "link").symlink_to("tool")
    (root / "outside").symlink_to("/etc/passwd")
    (root / "nowhere").symlink_to("../../nothing")
    (root / "folder").symlink_to("empty")
    (root / "bin" / "tool").chmod(0o755)
    (root / "x").chmod(0o400)
    (root / "empty").chmod(0o755)
    os.utime(root / "bin" / "tool", ns=(TIME, TIME))
    os.utime(root / "nowhere", ns=(TIME, TIME), follow_symlinks=False)
    os.utime(root / "empty" / "inner", ns=(TIME, TIME))
    return root


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """Returns what lies below a folder, and the folder itself: kinds, modes, times and contents."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        kind, content = stat.S_IFMT(status.st_mode), b""
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))  # noqa: PTH115  as bytes
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (kind, stat.S_IMODE(status.st_mode), status.st_mtime_ns, content)
    return found
