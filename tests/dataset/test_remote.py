"""Data sets at URLs, read where they are, from a web server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio import formats
from dlio.dataset import remote
from dlio.dataset.manifest import File, Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.reader import ShardReader
from dlio.dataset.remote import FileInPlace, load
from dlio.errors import CorruptRecordError, ManifestError, StorageError
from dlio.io import remote_files
from dlio.io.random_access import RandomAccessFile
from dlio.io.remote_files import RemoteFiles
from tests.helpers.arriving import through
from tests.helpers.web import WebServer

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests, and connections."""


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_SECONDS", 0.0)
    server = WebServer(tmp_path)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", formats.names())
def test_a_data_set_at_a_url_is_the_one_in_its_folder(web: WebServer, photos: Path, tmp_path: Path, name: str) -> None:
    local = dlio.pack(photos, tmp_path / "set", format=name, num_shards=2, engine="serial")
    found = load(f"{web.url}/set")
    assert found == local
    with closing(ShardPool(found)) as pool, closing(ShardPool(local)) as expected:
        assert [pool.read(index) for index in range(36)] == [expected.read(index) for index in range(36)]
        with pool.shard(1) as there, expected.shard(1) as here:
            rows = np.arange(0, 18, 5)
            assert {
                k: list(map(bytes, v)) if k == "image" else list(v) for k, v in there.read_columns(rows).items()
            } == {k: list(map(bytes, v)) if k == "image" else list(v) for k, v in here.read_columns(rows).items()}


def opened(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> RandomAccessFile:
    """Returns a file of 1,000 bytes, of which 100 are read at once where a reader continues."""
    (web.folder / "file").write_bytes(bytes(range(250)) * 4)
    monkeypatch.setattr(remote, "REQUEST_BYTES", 100)
    return through(FileInPlace(RemoteFiles(web.url), File("file", 1000, "")))


def test_reads_that_go_on_bring_blocks_and_others_only_what_they_need(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = opened(web, monkeypatch), bytes(range(250)) * 4
    for start in (0, 500, 510, 520, 605, 700, 10, 0):
        assert file.read(start, 10) == data[start : start + 10]
    assert [span for _, span in web.ranges] == [
        "bytes=0-9", "bytes=500-509", "bytes=510-609", "bytes=605-704", "bytes=700-799", "bytes=10-19", "bytes=0-9",
    ]  # fmt: skip
    assert file.read_many(np.array([990, 995]), np.array([5, 50])) == [data[990:995], data[995:]]


def test_threads_that_need_the_same_bytes_ask_once(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(web, monkeypatch)
    file.read(0, 1)
    web.delay = 0.05
    threads = [threading.Thread(target=file.read, args=(1 + number, 1)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [span for _, span in web.ranges] == ["bytes=0-0", "bytes=1-100"]


def test_a_read_that_failed_is_asked_for_again(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(web, monkeypatch)
    web.failing = remote_files.TRIES
    with pytest.raises(StorageError, match=f"cannot read {web.url}/file: 503"):
        file.read(0, 10)
    assert file.read(0, 10) == bytes(range(10))


def test_what_a_url_lacks_is_named_by_it(web: WebServer, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=f"{web.url}/set/manifest.jsonl does not exist"):
        load(f"{web.url}/set")
    dlio.pack(photos, tmp_path / "set", num_shards=1, engine="serial")
    found = load(f"{web.url}/set/manifest.jsonl")
    assert web.url in repr(found)
    records = tmp_path / "set/shard-000000.tfrecord"
    data = bytearray(records.read_bytes())
    data[200] ^= 1
    records.write_bytes(data)
    with closing(ShardReader(found, found.shards[0])) as reader, pytest.raises(CorruptRecordError, match=web.url):
        [reader.read(index) for index in range(36)]
    records.unlink()
    with closing(ShardReader(found, found.shards[0])) as reader, pytest.raises(StorageError, match=f"{web.url}/set/sh"):
        reader.read(0)


def test_a_manifest_at_a_url_is_staged_from_there(web: WebServer, photos: Path, tmp_path: Path) -> None:
    local = dlio.pack(photos, tmp_path / "set", num_shards=2, engine="serial")
    staged = dlio.stage(load(f"{web.url}/set"), tmp_path / "node")
    assert Manifest.load(staged.root) == local and not staged.url
