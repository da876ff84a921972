"""Entries that another user has put into a folder where dlio writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlio.errors import StorageError
from dlio.io.ground import check_ground
from dlio.io.open_folder import MAX_BYTES, Below, OpenFolder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
BOB = 2001


def make(kind: str, path: Path) -> None:
    """Makes an entry of a kind at a path."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.with_name("small").write_bytes(b"secret")
        path.symlink_to("small")
    else:
        path.write_bytes(bytes(MAX_BYTES + 1))


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "large file"])
def test_only_small_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path / "entry")
    with OpenFolder.at(tmp_path) as opened, pytest.raises(OSError):
        opened.read("entry")


def test_a_new_file_replaces_and_follows_nothing(tmp_path: Path) -> None:
    make("link", tmp_path / "entry")
    with OpenFolder.at(tmp_path) as opened:
        for name in ("entry", "small"):
            with pytest.raises(FileExistsError):
                opened.write_new(name, b"mine")
    assert (tmp_path / "small").read_bytes() == b"secret"


def test_others_may_read_a_new_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with OpenFolder.at(tmp_path) as opened:
            opened.write_new("entry", b"mine")
    finally:
        os.umask(before)
    assert (tmp_path / "entry").stat().st_mode & 0o777 == 0o644


def test_times_and_status_are_the_entrys_own(tmp_path: Path) -> None:
    make("link", tmp_path / "entry")
    os.utime(tmp_path / "small", (1, 1))
    with OpenFolder.at(tmp_path) as opened:
        opened.touch("entry")
        status = opened.look("entry")
        assert status and status.st_size == len("small")
    assert (tmp_path / "small").stat().st_mtime == 1


def test_removal_ends_at_a_depth_that_no_data_set_has(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    with OpenFolder.at(tmp_path) as opened:
        assert not opened.remove("a", os.geteuid(), depth=2)
        assert (tmp_path / "a/b/c").exists()
        assert opened.remove("a", os.geteuid(), depth=3)


def test_a_folder_that_is_not_the_owners_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Below(tmp_path, ("a",), os.geteuid()).open().close()
    with pytest.raises(StorageError):
        Below(tmp_path, ("a",), os.geteuid() + 1).open()


@as_root
def test_no_folder_is_made_where_another_user_has_one(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("mine")
    os.chown(tmp_path / "theirs", BOB, BOB)
    check_ground(tmp_path, "mine", "missing")
    for name, problem in (("theirs", "another user"), ("link", "not a folder")):
        with pytest.raises(StorageError, match=problem):
            check_ground(tmp_path, name)
