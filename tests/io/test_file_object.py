"""A RandomAccessFile as a Python file."""

from __future__ import annotations

import io
import random

import pytest

from dlio.errors import StorageError
from dlio.io.file_object import FileObject
from dlio.io.random_access import RandomAccessFile


def test_it_reads_and_seeks_as_pythons_own_files_do(tmp_path):
    path, choice = tmp_path / "data", random.Random(1)
    path.write_bytes(choice.randbytes(5000))
    file = RandomAccessFile(path)
    with path.open("rb") as theirs, FileObject(file) as ours:
        assert ours.readable() and ours.seekable() and not ours.writable()
        for _ in range(100):
            whence, size = choice.choice([io.SEEK_SET, io.SEEK_END]), choice.randrange(900)
            offset = choice.randrange(6000) if whence == io.SEEK_SET else -choice.randrange(5000)
            assert ours.seek(offset, whence) == theirs.seek(offset, whence)
            assert ours.read(size) == theirs.read(size) and ours.tell() == theirs.tell()
            assert ours.seek(3, io.SEEK_CUR) == theirs.seek(3, io.SEEK_CUR)
    assert file.read(0, 3) == path.read_bytes()[:3], "the owner closes it"
    file.close()


def test_errors_are_those_of_the_file(tmp_path):
    (tmp_path / "data").write_bytes(b"abc")
    file = RandomAccessFile(tmp_path / "data")
    file.close()
    with FileObject(file) as closed, pytest.raises(StorageError, match="closed"):
        closed.read(1)
