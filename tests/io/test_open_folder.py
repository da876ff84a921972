"""Entries of a folder that others can write to are not followed, not waited for, and not trusted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dlio.io.open_folder import MAX_BYTES, OpenFolder
from tests.helpers.forked import Forked


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_text("years of work")
    (tmp_path / "shared").mkdir()
    return tmp_path / "elsewhere" / "secret"


def test_a_link_is_not_read(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "shared" / "lease").symlink_to(secret)
    (tmp_path / "shared" / "folder").symlink_to(secret.parent)
    with OpenFolder.at(tmp_path / "shared") as opened:
        with pytest.raises(OSError, match="lease"):
            opened.read("lease")
        with pytest.raises(OSError, match="folder"):
            opened.below("folder")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "large file"])
def test_other_entries_are_neither_read_nor_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lease"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(MAX_BYTES + 1))

    def read() -> None:
        signal.alarm(20)  # opening a pipe would wait forever
        with OpenFolder.at(tmp_path) as opened, pytest.raises(OSError):
            opened.read("lease")

    assert Forked(read).wait() == 0


def test_publishing_replaces_a_link_and_not_its_target(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "shared" / "token").symlink_to(secret)
    with OpenFolder.at(tmp_path / "shared") as opened:
        opened.publish("token", b"mine", 0o600)
        assert opened.read("token")[0] == b"mine"
        assert opened.names() == ["token"]
        assert opened.read("token")[1].st_mode & 0o777 == 0o600
    assert secret.read_text() == "years of work"


_REMOVE = """
import sys
from pathlib import Path
from dlio.io.open_folder import OpenFolder

with OpenFolder.at(Path(sys.argv[1])) as opened:
    sys.exit(opened.remove("copy", 0))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, in a mount namespace")
@pytest.mark.parametrize("bound", ["a folder", "a file"])
def test_removal_enters_no_other_file_system(tmp_path: Path, bound: str) -> None:
    """A bind mount of the same file system has the same number, so another one is mounted."""
    copy = tmp_path / "copy"
    (copy / "inner").mkdir(parents=True)
    (copy / "shard").touch()
    (copy / "inner" / "shard").touch()
    target, source = ("inner", "there") if bound == "a folder" else ("shard", "there/work")
    (tmp_path / "there").mkdir()
    script = (
        f'mount -t tmpfs none there && echo years >there/work && mount --bind {source} copy/{target} && "$@"; '
        "code=$?; cat there/work; exit $code"
    )
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *_python(_REMOVE, tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "years\n"), done.stderr
    assert copy.exists()


def _python(code: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", code, str(folder)]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_removal_leaves_what_is_another_users(tmp_path: Path) -> None:
    (tmp_path / "copy" / "theirs").mkdir(parents=True)
    (tmp_path / "copy" / "mine").touch()
    os.chown(tmp_path / "copy" / "theirs", 2001, 2001)
    with OpenFolder.at(tmp_path) as opened:
        assert not opened.remove("copy", 0)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["theirs"]


def test_a_closed_folder_reaches_no_other_one(tmp_path: Path, secret: Path) -> None:
    """The system gives a descriptor's number to the next folder that is opened."""
    opened = OpenFolder.at(tmp_path / "shared")
    number = opened.descriptor
    opened.close()
    with OpenFolder.at(secret.parent) as other:
        assert other.descriptor == number
        for call in (lambda: opened.read("secret"), lambda: opened.publish("new", b""), opened.names, opened.close):
            with pytest.raises(OSError, match="Bad file descriptor"):
                call()
        assert other.names() == ["secret"]


def test_a_sparse_file_takes_what_is_there(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.write(bytes(range(256)) * 256)
        file.truncate(1 << 30)
        os.fsync(file.fileno())
    with OpenFolder.at(tmp_path) as folder:
        assert sum(folder.sizes()) <= 1 << 20
