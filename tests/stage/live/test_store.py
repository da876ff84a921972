"""The files that a node keeps while they arrive: what other processes see at each moment, and what survives a crash."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from dlio.dataset.manifest import File
from dlio.errors import DigestError, StorageError
from dlio.io import files
from dlio.locking.claim_file import Claim
from dlio.locking.owner import Owner
from dlio.stage.copies.blocks import BLOCK_BYTES, Blocks
from dlio.stage.copies.live_folder import FILES, SMALL_BYTES, LiveFolder
from dlio.stage.engine.complete import begin_copy
from dlio.stage.engine.store import Store
from tests.helpers import synced
from tests.helpers.live import made_at, store_of
from tests.helpers.staging import flip

DATA = random.Random(1).randbytes(10 * BLOCK_BYTES + 77)
FILE = File("a.bin", len(DATA), files.digest_bytes(DATA))


@pytest.fixture
def live(tmp_path: Path) -> LiveFolder:
    """The live folder of a copy."""
    return made_at(tmp_path)


def store_in(live: LiveFolder, file: File = FILE) -> Store:
    """Returns an agent's store of one file."""
    lacking = set() if live.staged.has(file) else {0}
    return store_of(live, [file], lacking)


def filled(live: LiveFolder, data: bytes = DATA) -> Store:
    """Returns a store to which all bytes of the file were written, a part of which a reader has asked for."""
    store = store_in(live)
    store.missing(0, [(0, 0)])
    store.write(0, 0, memoryview(data))
    return store


def test_no_block_is_marked_before_its_bytes_are_in_the_file(live: LiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    pwrite = os.pwrite

    def looked_at(descriptor: int, data: memoryview, offset: int) -> int:
        if os.fstat(descriptor).st_size != FILE.num_bytes:  # the bits' own file
            return pwrite(descriptor, data, offset)
        bits = Blocks.open(live.blocks(FILE), FILE.num_bytes)  # as a loader in another process
        seen.append(not bits.missing(offset, offset + len(data)))
        bits.close()
        return pwrite(descriptor, data, offset)

    store = store_in(live)
    store.missing(0, [(0, FILE.num_bytes)])
    monkeypatch.setattr(os, "pwrite", looked_at)
    store.write(0, BLOCK_BYTES, memoryview(DATA)[BLOCK_BYTES : 3 * BLOCK_BYTES])
    assert seen == [False]
    assert store.missing(0, [(0, 3 * BLOCK_BYTES)]) == [(0, BLOCK_BYTES)]


def test_a_write_that_the_system_takes_in_part_is_completed(live: LiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:9999], offset))
    filled(live).finish(0)
    assert (live.staged.path / FILE.name).read_bytes() == DATA


def test_a_file_is_on_the_disk_before_it_gets_its_name(live: LiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = synced.watched(monkeypatch)
    filled(live).finish(0)
    assert disk.named[-1] == (live.staged.path / FILE.name, True)


def test_a_file_with_another_digest_gets_no_name(live: LiveFolder) -> None:
    store = filled(live, bytes(len(DATA)))
    with pytest.raises(DigestError, match="source is damaged"):
        store.finish(0)
    assert not (live.staged.path / FILE.name).exists() and not store.is_finished(0)


def test_a_new_agent_goes_on_with_the_blocks_of_a_dead_one(live: LiveFolder) -> None:
    store_in(live).write(0, 0, memoryview(DATA)[:BLOCK_BYTES])
    store = store_in(live)
    assert store.missing(0, [(0, FILE.num_bytes)]) == [(BLOCK_BYTES, FILE.num_bytes)]
    store.write(0, BLOCK_BYTES, memoryview(DATA)[BLOCK_BYTES:])
    beats = list[int]()
    store_in(live).finish(0, lambda: beats.append(1))  # reads all of it
    assert beats and (live.staged.path / FILE.name).read_bytes() == DATA


def test_the_digest_of_a_file_that_was_gone_on_with_is_that_of_all_its_blocks(live: LiveFolder) -> None:
    store_in(live).write(0, 0, memoryview(DATA)[:BLOCK_BYTES])
    store = store_in(live)
    store.write(0, BLOCK_BYTES, memoryview(DATA)[BLOCK_BYTES:])
    store.finish(0)
    assert (live.staged.path / FILE.name).read_bytes() == DATA


def test_what_is_kept_of_an_unfinished_file_is_in_no_other_files_way(live: LiveFolder) -> None:
    names = ["x.new", "x.blocks", "x", "x.bits", "0", "1", "2"]
    each = {name: random.Random(name).randbytes(SMALL_BYTES + 1) for name in names}
    listed = [File(f"env/{name}", len(data), files.digest_bytes(data)) for name, data in each.items()]
    store = store_of(live, listed)
    for number, data in enumerate(each.values()):
        store.missing(number, [(0, 0)])
        store.write(number, 0, memoryview(data)[:BLOCK_BYTES])
    for number, data in enumerate(each.values()):
        store.write(number, BLOCK_BYTES, memoryview(data)[BLOCK_BYTES:])
        store.finish(number)
    assert {name: (live.staged.path / "env" / name).read_bytes() for name in names} == each


def test_a_resumed_files_earlier_blocks_are_proved_by_reading_them_back(live: LiveFolder) -> None:
    store_in(live).write(0, 0, memoryview(DATA)[:BLOCK_BYTES])
    flip(live.unfinished(FILE))
    store = store_in(live)
    store.write(0, BLOCK_BYTES, memoryview(DATA)[BLOCK_BYTES:])
    with pytest.raises(DigestError, match="is damaged"):
        store.finish(0)


def test_what_is_fetched_again_counts_for_the_digest_instead(live: LiveFolder) -> None:
    store = filled(live, bytes(BLOCK_BYTES) + DATA[BLOCK_BYTES:])
    store.clear(0, [(0, 1)])
    store.write(0, 0, memoryview(DATA)[:BLOCK_BYTES])
    store.finish(0)
    assert (live.staged.path / FILE.name).read_bytes() == DATA


def test_a_file_that_comes_as_one_piece_has_no_blocks(live: LiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(live)
    assert store.missing(0, [(0, 1)], begins=False) == [(0, FILE.num_bytes)]
    assert [*(live.path / FILES).iterdir()] == [] and not store.is_whole(0)
    disk = synced.watched(monkeypatch)
    store.write(0, 0, memoryview(DATA))
    assert disk.named == [(live.staged.path / FILE.name, True)]
    assert store.is_finished(0) and store.is_whole(0) and store.missing(0, [(0, 1)]) == []
    assert (live.staged.path / FILE.name).read_bytes() == DATA and [*(live.path / FILES).iterdir()] == []


@pytest.mark.parametrize("data", [bytes(len(DATA)), DATA[:-1] + b"!"], ids=["zeros", "another end"])
def test_a_file_that_comes_as_one_piece_with_another_digest_gets_no_name(live: LiveFolder, data: bytes) -> None:
    store = store_in(live)
    with pytest.raises(DigestError, match="source is damaged"):
        store.write(0, 0, memoryview(data))
    assert not (live.staged.path / FILE.name).exists() and not store.is_finished(0) and not store.is_whole(0)
    store.write(0, 0, memoryview(DATA))
    assert (live.staged.path / FILE.name).read_bytes() == DATA


def test_a_full_disk_leaves_nothing_of_a_file_that_comes_as_one_piece(
    live: LiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        if offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data[:9999], offset)

    store = store_in(live)
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left"):
        patch.setattr(os, "pwrite", full)
        store.write(0, 0, memoryview(DATA))
    assert [*(live.path / FILES).iterdir()] == [] and not store.is_finished(0)
    store.write(0, 0, memoryview(DATA))
    assert (live.staged.path / FILE.name).read_bytes() == DATA


def test_what_a_dead_agent_has_left_is_gone_on_with_before_a_reader_comes(live: LiveFolder) -> None:
    store_in(live).write(0, 0, memoryview(DATA)[:BLOCK_BYTES])
    store = store_in(live)
    assert store.missing(0, [(0, FILE.num_bytes)], begins=False) == [(BLOCK_BYTES, FILE.num_bytes)]


def test_a_reader_that_comes_while_a_file_is_written_at_once_waits_for_all_of_it(
    live: LiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = store_in(live), []
    fsync = os.fsync

    def looked_at(descriptor: int) -> None:
        seen.append(store.missing(0, [(0, 1)]))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", looked_at)
    store.write(0, 0, memoryview(DATA))
    assert seen == [[(0, FILE.num_bytes)]] and store.missing(0, [(0, 1)]) == []


def test_a_small_file_replaces_what_a_dead_agent_has_left(live: LiveFolder) -> None:
    small = File("small", 5, files.digest_bytes(b"small"))
    live.unfinished(small).write_bytes(b"another, longer one")
    store = store_in(live, small)
    store.write(0, 0, memoryview(b"small"))
    assert store.is_finished(0)
    assert (live.staged.path / small.name).read_bytes() == b"small"
    assert [*(live.path / FILES).iterdir()] == []


@pytest.mark.parametrize("size", [0, 5])
def test_a_small_file_needs_no_file_of_blocks(live: LiveFolder, size: int) -> None:
    small = File("small", size, files.digest_bytes(bytes(size)))
    store = store_in(live, small)
    assert store.missing(0, [(0, 0)]) == ([(0, size)] if size else [])
    assert [*(live.path / FILES).iterdir()] == []


def test_a_begun_file_of_another_size_is_begun_again(live: LiveFolder) -> None:
    store_in(live).write(0, 0, memoryview(DATA)[:BLOCK_BYTES])
    with live.unfinished(FILE).open("ab") as file:
        file.truncate(FILE.num_bytes - 1)
    assert store_in(live).missing(0, [(0, FILE.num_bytes)]) == [(0, FILE.num_bytes)]
    assert live.unfinished(FILE).stat().st_size == FILE.num_bytes


def test_a_link_in_a_files_place_is_neither_written_nor_gone_on_with(live: LiveFolder, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_bytes(bytes(FILE.num_bytes))
    store = store_in(live)
    store.missing(0, [(0, FILE.num_bytes)])
    live.unfinished(FILE).unlink()
    live.unfinished(FILE).symlink_to(theirs)
    with pytest.raises(StorageError, match="cannot write"):
        store.write(0, 0, memoryview(DATA))
    again = store_in(live)
    assert again.missing(0, [(0, FILE.num_bytes)]) == [(0, FILE.num_bytes)]
    assert not live.unfinished(FILE).is_symlink()
    assert theirs.read_bytes() == bytes(FILE.num_bytes)


def test_an_unfinished_file_appears_with_its_size(live: LiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    truncate = os.ftruncate

    def looked_at(descriptor: int, num_bytes: int) -> None:
        sizes.extend(path.stat().st_size for path in [live.unfinished(FILE)] if path.exists())
        truncate(descriptor, num_bytes)

    monkeypatch.setattr(os, "ftruncate", looked_at)
    store_in(live).missing(0, [(0, 1)])
    assert sizes == [] and live.unfinished(FILE).stat().st_size == FILE.num_bytes


def test_a_process_that_was_taken_for_lost_names_no_file_of_its_successor(live: LiveFolder) -> None:
    """One that was stopped continues with the end of a file; its successor has written that end, and not the rest."""
    elsewhere, mine = Claim(1, Owner("another/boot", "pid:[1]", 1, 1), "lost"), Claim(2, Owner.current(), "mine")
    stopped, final = filled(live), live.staged.path / FILE.name
    begin_copy(live.staged, "source", (mine, elsewhere))
    live.make()
    successor, end = store_in(live), 9 * BLOCK_BYTES
    successor.missing(0, [(0, 0)])
    successor.write(0, end, memoryview(DATA)[end:])
    with suppress(StorageError):
        stopped.finish(0)
    assert not final.exists() or final.read_bytes() == DATA
    successor.write(0, 0, memoryview(DATA)[:end])
    successor.finish(0)
    assert final.read_bytes() == DATA


@pytest.mark.parametrize("size", [100, SMALL_BYTES + 1, len(DATA)])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_thread_that_still_writes_does_not_make_a_removed_copy_again(
    live: LiveFolder, size: int, is_begun: bool
) -> None:
    """Else its file would be left without a marker, and each later stage would ask for its removal."""
    file = File("below/a.bin", size, files.digest_bytes(DATA[:size]))
    store = store_in(live, file)
    if is_begun:
        store.missing(0, [(0, 1)])
    live.staged.path.rename(live.staged.path.with_name("removed"))
    with pytest.raises(StorageError, match="No such file"):
        store.write(0, 0, memoryview(DATA)[:size])
        store.finish(0)
    assert not live.staged.path.exists()


def test_the_live_folder_is_this_users_alone_whatever_was_there(live: LiveFolder) -> None:
    live.path.chmod(0o755)
    live.make()
    assert live.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("by", ["the same", "the next agent"])
def test_zeros_replace_wrong_bytes_that_are_fetched_again(live: LiveFolder, by: str) -> None:
    zeros = File("zeros", len(DATA), files.digest_bytes(bytes(len(DATA))))
    store = store_in(live, zeros)
    store.missing(0, [(0, 0)])
    store.write(0, 0, memoryview(DATA))
    store.clear(0, [(0, len(DATA))])
    if by == "the next agent":
        store.close()
        store = store_in(live, zeros)
    store.write(0, 0, memoryview(bytes(len(DATA))))
    store.finish(0)
    assert (live.staged.path / zeros.name).read_bytes() == bytes(len(DATA))
