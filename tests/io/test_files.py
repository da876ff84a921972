"""Files: digests while bytes pass, and names that appear only when the content is whole."""

from __future__ import annotations

import os

import blake3
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import DigestError, StorageError, UsageError
from dlio.io import files, world
from dlio.io.digesting_file import DigestingFile
from tests.helpers import synced

ALGORITHMS = {
    "xxh3-128": lambda data: xxhash.xxh3_128_hexdigest(data),
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(blocks=st.lists(st.binary(max_size=100), max_size=10))
def test_a_digest_is_the_algorithm_and_its_hex(tmp_path_factory, algorithm, blocks):
    path = tmp_path_factory.mktemp("digest") / "file"
    file = DigestingFile(path, algorithm)
    for block in blocks:
        assert file.write(block) == len(block)
    assert file.tell() == sum(map(len, blocks))
    file.close()
    file.close()
    expected = f"{algorithm}:{ALGORITHMS[algorithm](b''.join(blocks))}"
    assert path.read_bytes() == b"".join(blocks)
    assert file.digest == expected
    assert files.digest_bytes(b"".join(blocks), algorithm) == expected
    assert files.digest_file(path, algorithm) == expected


def test_an_unknown_digest_is_refused():
    with pytest.raises(UsageError, match=r"'md5' is not a digest: expected one of xxh3-128, blake3"):
        files.new_hash("md5")


def test_a_digesting_file_never_replaces_one(tmp_path):
    (tmp_path / "x").write_bytes(b"mine")
    with pytest.raises(StorageError, match=r"cannot create .*/x: File exists"):
        DigestingFile(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"mine"


def test_blocks_are_the_file(tmp_path):
    data = os.urandom(files.READ_BYTES + 17)
    (tmp_path / "x").write_bytes(data)
    sizes, joined = [], b""
    for block in files.read_blocks(tmp_path / "x"):
        sizes.append(len(block))
        joined += block
    assert joined == data
    assert sizes == [files.READ_BYTES, 17]


def test_a_wrong_digest_names_both(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    good = files.digest_bytes(b"content")
    files.check_digest(tmp_path / "x", good)
    (tmp_path / "x").write_bytes(b"contant")
    with pytest.raises(DigestError, match=rf"x is damaged: expected the digest {good}, found xxh3-128:"):
        files.check_digest(tmp_path / "x", good)


def test_a_missing_file_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read .*absent: No such file"):
        files.digest_file(tmp_path / "absent")
    with pytest.raises(StorageError, match=r"cannot sync .*absent: No such file"):
        files.publish(tmp_path / "absent", tmp_path / "final")


def test_publishing_replaces_and_leaves_nothing_aside(tmp_path):
    (tmp_path / "final").write_bytes(b"old")
    (tmp_path / "aside").write_bytes(b"new")
    files.publish(tmp_path / "aside", tmp_path / "final")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("final", b"new")]


def test_publishing_several_keeps_their_folders(tmp_path):
    names = ["a", "d/b", "d/e/c"]
    for name in names:
        (tmp_path / "aside" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "aside" / name).write_text(name)
    files.publish_all(tmp_path / "aside", tmp_path / "final", names)
    assert [(tmp_path / "final" / name).read_text() for name in names] == names
    assert [path for path in (tmp_path / "aside").rglob("*") if path.is_file()] == []


def test_what_is_published_is_on_the_disk_with_its_name(tmp_path, monkeypatch):
    disk = synced.watched(monkeypatch)
    (tmp_path / "aside").write_bytes(b"new")
    files.publish(tmp_path / "aside", tmp_path / "final")
    assert disk.named == [(tmp_path / "final", True)] and not disk.names_to_sync


def test_of_several_files_all_are_on_the_disk_before_the_first_has_its_name(tmp_path, monkeypatch):
    disk = synced.watched(monkeypatch)
    (tmp_path / "aside/below").mkdir(parents=True)
    names = ["a", "below/b"]
    for name in names:
        (tmp_path / "aside" / name).write_text(name)
    files.publish_all(tmp_path / "aside", tmp_path / "final", names)
    assert disk.named == [(tmp_path / "final" / name, True) for name in names] and not disk.names_to_sync


def test_a_small_file_that_cannot_be_published_leaves_nothing(tmp_path):
    (tmp_path / "final").mkdir()
    with pytest.raises(StorageError, match="cannot publish"):
        files.publish_bytes(tmp_path / "final", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_advice_follows_the_reason(tmp_path):
    for number, advice in [
        (28, "free some space"),
        (27, "pack into smaller shards"),
        (122, "ask for a larger quota"),
        (13, "check the owner"),
        (5, "error$"),
    ]:
        with pytest.raises(StorageError, match=advice) as caught, files.storage_errors("write", tmp_path):
            raise OSError(number, os.strerror(number))
        assert caught.value.errno == number


def test_a_lack_of_memory_names_the_file(tmp_path):
    named = pytest.raises(StorageError, match=rf"cannot read {tmp_path}: .*memory")
    with named, files.storage_errors("read", tmp_path):
        raise MemoryError


def test_a_digest_covers_all_blocks(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    assert files.digest_file(tmp_path / "x", block_bytes=3) == files.digest_bytes(b"content")


def test_a_write_that_the_system_takes_in_part_goes_on(tmp_path, monkeypatch):
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: writev(descriptor, [b"".join(parts)[:7]]))
    file = DigestingFile(tmp_path / "x")
    file.write(b"small ")
    file.writelines([bytes(100), b"x" * (64 << 10)])
    file.close()
    assert (tmp_path / "x").read_bytes() == b"small " + bytes(100) + b"x" * (64 << 10)


def test_a_pipe_is_no_regular_file_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is not a regular file"):
        files.read_regular(tmp_path / "pipe", 9)


def test_no_more_is_read_than_one_byte_beyond_the_limit(tmp_path):
    (tmp_path / "x").write_bytes(b"content")
    assert files.read_regular(tmp_path / "x", 3) == b"cont"
    assert files.read_regular(tmp_path / "x", 7) == b"content"


def test_a_small_file_is_not_written_through_a_planted_link(tmp_path, monkeypatch):
    monkeypatch.setattr(world, "random_bytes", bytes)
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / f".final.{bytes(8).hex()}.tmp").symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError, match="File exists"):
        files.publish_bytes(tmp_path / "final", b"mine")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


def test_the_name_of_an_unfinished_small_file_cannot_be_foreseen(tmp_path, monkeypatch):
    names = set()
    monkeypatch.setattr(files, "publish", lambda aside, final: names.add(aside.name))
    for _ in range(2):
        files.publish_bytes(tmp_path / "final", b"data")
        for path in tmp_path.iterdir():
            path.unlink()
    assert len(names) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_is_not_published_into(tmp_path):
    out, aside = tmp_path / "out", tmp_path / "aside/below"
    (out / "below").mkdir(parents=True)
    aside.mkdir(parents=True)
    (aside / "file").write_bytes(b"mine")
    os.chown(out / "below", 2001, 2001)
    out.chmod(0o1777)
    with pytest.raises(StorageError, match="another user"):
        files.publish_all(tmp_path / "aside", out, ["below/file"])
    assert not list((out / "below").iterdir())
