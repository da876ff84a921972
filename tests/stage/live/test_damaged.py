"""What is wrong is fetched again, and nothing is written into a file that has its name."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from dlio.dataset.manifest import File
from dlio.io import files
from dlio.stage.engine.fill import Fill
from dlio.stage.protocol.wire import Origin
from tests.helpers.live import (
    FetchedBy,
    eventually,
    live_at,
    store_at,
)
from tests.helpers.staging import MiB


def test_a_damaged_file_is_fetched_again_before_the_rest(tmp_path: Path) -> None:
    """It shows which node sends wrong bytes, before that has sent all."""
    content = random.Random(3).randbytes(2 * MiB)
    store = store_at(tmp_path, [File(f"{each}.bin", len(content), files.digest_bytes(content)) for each in range(3)])
    fetched = list[int]()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        fetched.append(number)
        target[:] = content[begin : begin + len(target)] if len(fetched) > 1 else bytes(len(target))
        return Origin.SOURCE

    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.follow(range(3))
    fill.start(1)
    eventually(lambda: store.is_complete)
    assert fill.stop()
    assert fetched == sorted(fetched)


def test_what_failed_its_checksum_is_fetched_again_and_from_the_source(tmp_path: Path) -> None:
    asked: list[tuple[int, bool]] = []

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        asked.append((begin, only_source))
        return Origin.SOURCE if only_source else Origin.PEER

    listed = [File("a.bin", 3 * MiB, "xxh3-128:0")]
    fill = Fill(store_at(tmp_path, listed), FetchedBy(fetch, listed))
    fill.start(1)
    try:
        assert fill.need(0, [(0, 9)]) == Origin.PEER
        assert fill.again(0, [(0, 9)]) == Origin.SOURCE
    finally:
        fill.stop()
    assert asked == [(0, False), (0, True)]


@pytest.mark.parametrize("content", [b"content", random.Random(0).randbytes(MiB + 7)], ids=["small", "large"])
def test_a_damaged_file_is_fetched_again_from_the_source(tmp_path: Path, content: bytes) -> None:
    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        target[:] = content[begin : begin + len(target)] if only_source else bytes(len(target))
        return Origin.SOURCE if only_source else Origin.PEER

    store = store_at(tmp_path, [File("a.bin", len(content), files.digest_bytes(content))])
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.start(1)
    try:
        assert fill.need(0, []) == Origin.SOURCE
    finally:
        fill.stop()
    assert (live_at(tmp_path).staged.path / "a.bin").read_bytes() == content


@pytest.mark.parametrize("size", [9, 99_999, 2 * MiB], ids=["small", "at once", "in blocks"])
def test_a_source_that_answers_after_the_end_changes_no_file(tmp_path: Path, size: int) -> None:
    begun, answers = threading.Event(), threading.Event()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        begun.set()
        answers.wait(60)
        return Origin.SOURCE

    store = store_at(tmp_path, [File("a.bin", size, files.digest_bytes(bytes(size)))])
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.follow([0])
    fill.start(1)
    assert begun.wait(60) and not fill.stop()
    answers.set()
    eventually(fill.stop)
    assert not [path for path in tmp_path.rglob("a.bin") if path.is_file()]


def test_a_damaged_file_is_fetched_again_though_the_disk_refuses_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks cannot be marked as missing once; the only thread continues all the same."""
    content, pwrite, refused = random.Random(0).randbytes(3 * MiB), os.pwrite, list[int]()

    def refuses_once(descriptor: int, data: memoryview, offset: int) -> int:
        if not (any(data) or refused):
            refused.append(descriptor)
            raise OSError(errno.EIO, "Input/output error")
        return pwrite(descriptor, data, offset)

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        target[:] = content[begin : begin + len(target)] if only_source else random.randbytes(len(target))
        return Origin.SOURCE if only_source else Origin.PEER

    store = store_at(tmp_path, [File("a.bin", len(content), files.digest_bytes(content))])
    monkeypatch.setattr(os, "pwrite", refuses_once)
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.start(1)
    try:
        fill.need(0, [])
    finally:
        fill.stop()
    assert refused and (live_at(tmp_path).staged.path / "a.bin").read_bytes() == content


def test_nothing_is_written_into_a_file_that_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader reports bad bytes at that moment, and the source has others by now: they would never be verified."""
    content, replace, written = random.Random(0).randbytes(3 * MiB), os.replace, threading.Event()
    names, may_name = threading.Event(), threading.Event()

    def fetch(number: int, begin: int, target: memoryview, only_source: bool) -> Origin:
        target[:] = bytes(len(target)) if only_source else content[begin : begin + len(target)]
        return Origin.SOURCE

    def held_up(source: Path, final: Path, **folders: int | None) -> None:
        if Path(final) == live_at(tmp_path).staged.path / "a.bin":
            names.set()
            may_name.wait(60)
        replace(source, final, **folders)

    def report(num_bytes: int) -> None:
        if names.is_set():
            written.set()

    store = store_at(tmp_path, [File("a.bin", len(content), files.digest_bytes(content))], report)
    monkeypatch.setattr(os, "replace", held_up)
    fill = Fill(store, FetchedBy(fetch, store.listed))
    fill.follow([0])
    fill.start(2)
    assert names.wait(60)
    reader = threading.Thread(target=lambda: fill.again(0, [(0, 9)]))
    reader.start()
    written.wait(0.5)
    may_name.set()
    reader.join(60)
    assert fill.stop() and (live_at(tmp_path).staged.path / "a.bin").read_bytes() == content
