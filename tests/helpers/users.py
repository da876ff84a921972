"""Other users of the node, for tests that root runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import dlio.stage.strategies.replicate  # noqa: F401  loaded while its files can be read
from tests.helpers.forked import Forked

BOB, ALICE = 2001, 2002
COPY = "0123456789abcdef" * 2


def open_to_all(tmp_path: Path) -> Path:
    """Makes the folder `tmp` as /tmp is, lets every user reach it, and returns it."""
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    return tmp_path / "tmp"


def as_user(uid: int, function: Callable[[], object]) -> int:
    """Returns the exit code of a process of the user `uid` that calls the function."""

    def child() -> None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        os.environ["HOME"] = "/nonexistent"
        function()

    return Forked(child).wait()


def is_whole(thesis: Path) -> bool:
    return sorted(path.name for path in thesis.rglob("*")) == ["1", "2", "chapter", "thesis.tex"]


def marked(folder: Path) -> Path:
    """Makes a folder that bears dlio's marker."""
    (folder / ".dlio").mkdir(parents=True)
    (folder / ".dlio" / "copy.json").write_text(json.dumps({"copy": folder.name, "source": "/data"}))
    return folder


def given_to_bob(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, BOB, BOB)


NOBODY = 65534


@contextmanager
def unprivileged():
    """Runs as nobody where the tests run as root, since modes do not stop root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
