"""Many small files are read by one call."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import numpy as np
import pytest

from dlio import native

pytestmark = pytest.mark.skipif(not native.available, reason="the compiled core is not installed")


def read(folder, names, room, capacity):
    """Returns for each file its bytes, the error, or the descriptor with the bytes."""
    encoded = [os.fsencode(name) for name in names]
    ends = np.cumsum([0, *map(len, encoded)])
    data, bounds, unusual = native.read_files(str(folder), b"".join(encoded), ends, room, capacity)
    found = [data[start:stop] for start, stop in pairwise(bounds.tolist())]
    for row, error, descriptor in unusual:
        found[row] = error or (descriptor, found[row])
    return found


@pytest.fixture
def names(tmp_path):
    """Twenty files of 1 to 20 bytes, with odd names."""
    names = [os.fsdecode(b"\xff\xe9"), "ä ö", "new\nline", *map(str, range(17))]
    for size, name in enumerate(names, start=1):
        (tmp_path / name).write_bytes(bytes([size]) * size)
    return names


def test_each_file_comes_whole_and_in_order(tmp_path, names):
    expected = [bytes([size]) * size for size in range(1, 21)]
    assert read(tmp_path, names, 64, 4096) == expected
    assert read("/nowhere", [str(tmp_path / name) for name in names], 64, 4096) == expected


def test_reading_stops_when_the_capacity_is_used_up(tmp_path, names):
    first = read(tmp_path, names, 30, 40)
    assert first == [bytes([size]) * size for size in range(1, 6)]  # 15 bytes, 25 are left


def test_a_long_or_empty_file_is_left_open(tmp_path):
    (tmp_path / "long").write_bytes(b"0123456789")
    (tmp_path / "empty").touch()
    long, empty = read(tmp_path, ["long", "empty"], 4, 8)
    assert long[1] == b"0123" and os.read(long[0], 100) == b"456789"
    assert empty[1] == b"" and os.fstat(empty[0]).st_size == 0
    os.close(long[0])
    os.close(empty[0])


def test_errors_are_the_systems_numbers(tmp_path, names):
    (tmp_path / "folder").mkdir()
    found = read(tmp_path, ["gone", "folder", names[0], f"{names[0]}/below"], 8, 64)
    assert found == [errno.ENOENT, errno.EISDIR, b"\x01", errno.ENOTDIR]
    assert read(tmp_path / names[0], ["a"], 8, 64) == [errno.ENOTDIR]
    assert read(tmp_path / "gone", ["a"], 8, 64) == [errno.ENOENT]


def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    ((descriptor, data),) = read(tmp_path, ["pipe"], 8, 64)
    os.close(descriptor)
    assert data == b""


def test_what_is_no_path_is_refused():
    ends = np.array([0, 1])
    with pytest.raises(TypeError, match="folder"):
        native.read_files(b"/etc", b"a", ends, 8, 64)
    with pytest.raises(TypeError):
        native.read_files("/etc", "a", ends, 8, 64)
    with pytest.raises(TypeError):
        native.read_files("/etc", b"a", ends.astype(np.int32), 8, 64)
    with pytest.raises(UnicodeEncodeError):
        native.read_files("\ud800", b"a", ends, 8, 64)
    with pytest.raises(ValueError, match="null byte"):
        read("/etc", ["a\0b"], 8, 64)
    with pytest.raises(ValueError, match="bounds"):
        native.read_files("/etc", b"", ends, 8, 64)
    for room, capacity in ((0, 8), (9, 8)):
        with pytest.raises(ValueError, match="room"):
            read("/etc", [], room, capacity)
