"""What a hostile user can leave in a folder that all can write to: random links, pipes, odd files, forged copies.

plant(dest, content_id, targets, seed)     as the hostile user; what is refused is not planted
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_ODD = (
    b"[" * 200_000,
    b"",
    b"\xff\xfe\x00",
    b"null",
    b'{"job": "x", "holder": {"node": 1, "namespace": [], "pid": "p", "started": {}}, "renewed": NaN}',
    b'{"job": "x", "holder": {"node": "n/b", "namespace": "", "pid": 1, "started": 0}, "renewed": ' + b"9" * 400 + b"}",
    b'{"owner": {"node": "n/b", "namespace": "", "pid": 1e999, "started": null}, "token": "../..", "state": "held"}',
)


def plant(dest: Path, content_id: str, targets: Sequence[Path], seed: int) -> None:
    """Plants one to four things; `targets` are what links point to."""
    choose = random.Random(seed)
    for _ in range(choose.randint(1, 4)):
        with suppress(OSError):
            _put(choose, _place(choose, dest, content_id), choose.choice(targets))


def _place(choose: random.Random, dest: Path, content_id: str) -> Path:
    """Returns a path that dlio may check."""
    cache = choose.choice((dest / "dlio", dest / "dlio", dest / f"dlio-u{os.geteuid()}" / "dlio"))
    copy = choose.choice((content_id, "zz", f".removed-0123456789abcdef-{content_id}", ".leaving-0123456789abcdef-zz"))
    inside = choose.choice(("s", "1", "1/s", "12", ".x", "9" * 30, ".tmp"))
    _forge(choose, cache / copy)
    return choose.choice(
        (
            cache / ".claims" / copy / inside,
            cache / ".claims" / copy,
            cache / ".claims" / inside,
            cache / ".leases" / copy / inside,
            cache / ".leases" / f"{copy}@{choose.getrandbits(64):016x}",
            cache / ".leases" / f"{copy}@{choose.getrandbits(64):016x}",
            cache / ".leases" / copy,
            cache / copy / inside,
            cache / copy / ".dlio" / choose.choice(("live", "live/files", "copy.json", "y", "manifest.jsonl")),
            cache / copy / "manifest.jsonl",
            cache,
            dest / f"dlio-u{choose.choice((0, 2001))}",
            dest / f"dlio-u{os.geteuid()}",
        )
    )


def _forge(choose: random.Random, copy: Path) -> None:
    """Makes a copy of a data set, or what looks like one."""
    if choose.random() < 0.5:
        with suppress(OSError):
            (copy / ".dlio").mkdir(parents=True, exist_ok=True)
            (copy / ".dlio" / "copy.json").write_text(json.dumps({"copy": copy.name, "source": "/"}))
            copy.chmod(choose.choice((0o777, 0o755, 0o700, 0o000)))


def _put(choose: random.Random, path: Path, target: Path) -> None:
    """Creates something at a path, after removing what this user may remove there."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    kind = choose.choice(("link", "link", "link", "loop", "fifo", "odd", "sparse", "folder", "mode"))
    if kind == "link":
        path.symlink_to(target)
    elif kind == "loop":
        for name in ("a", "b", "c"):
            (path.parent / name).symlink_to(".")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "deep" / "deeper").mkdir(parents=True)
    else:
        path.write_bytes(choose.choice(_ODD))
        if kind == "sparse":
            os.truncate(path, 20 << 30)
        if kind == "mode":
            path.chmod(choose.choice((0o000, 0o200, 0o777)))
