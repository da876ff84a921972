"""Many small files are read by one call."""

from __future__ import annotations

import errno
import os

import pytest

from dlio import native

pytestmark = pytest.mark.skipif(not native.available, reason="the compiled core is not installed")


@pytest.fixture
def paths(tmp_path):
    """Twenty files of 1 to 20 bytes, with odd names."""
    names = [os.fsdecode(b"\xff\xe9"), "ä ö", "new\nline", *map(str, range(17))]
    for size, name in enumerate(names, start=1):
        (tmp_path / name).write_bytes(bytes([size]) * size)
    return [str(tmp_path / name) for name in names]


def test_each_file_comes_whole_and_in_order(paths):
    assert native.read_files(paths, 64, 4096) == [bytes([size]) * size for size in range(1, 21)]


def test_reading_stops_when_the_capacity_is_used_up(paths):
    first = native.read_files(paths, 30, 40)
    assert first == [bytes([size]) * size for size in range(1, 6)]  # 15 bytes, 25 are left


def test_a_long_or_empty_file_is_left_open(tmp_path):
    (tmp_path / "long").write_bytes(b"0123456789")
    (tmp_path / "empty").touch()
    long, empty = native.read_files([str(tmp_path / "long"), str(tmp_path / "empty")], 4, 8)
    assert long[1] == b"0123" and os.read(long[0], 100) == b"456789"
    assert empty[1] == b"" and os.fstat(empty[0]).st_size == 0
    os.close(long[0])
    os.close(empty[0])


def test_errors_are_the_systems_numbers(tmp_path, paths):
    assert native.read_files([str(tmp_path / "gone"), str(tmp_path), paths[0]], 8, 64) == [
        errno.ENOENT,
        errno.EISDIR,
        b"\x01",
    ]


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    ((descriptor, data),) = native.read_files([str(tmp_path / "pipe")], 8, 64)
    os.close(descriptor)
    assert data == b""


def test_what_is_no_path_is_refused():
    for paths in ([b"/etc/passwd"], [None]):
        with pytest.raises(TypeError, match="paths"):
            native.read_files(paths, 8, 64)
    with pytest.raises(UnicodeEncodeError):
        native.read_files(["\ud800"], 8, 64)
    for path in ("a\0b", "ä\0b"):
        with pytest.raises(ValueError, match="null byte"):
            native.read_files([path], 8, 64)
    for room, capacity in ((0, 8), (9, 8)):
        with pytest.raises(ValueError, match="room"):
            native.read_files([], room, capacity)
