"""Publishing shards while the next ones are written."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

import dlio
from dlio.dataset.manifest import PARTIAL_NAME, Shard
from dlio.errors import StorageError
from dlio.executors import Pool
from dlio.io import files
from dlio.pack import write
from dlio.pack.listing.image_files import ImageFiles
from dlio.pack.publish import publishing
from dlio.pack.resume import PartialManifest
from dlio.pack.write import ASIDE
from dlio.sources import image_folder
from dlio.testing.container import content
from tests.helpers import synced
from tests.helpers.packing import image_folder_as


def test_the_next_shard_is_read_while_one_is_synced(photos, tmp_path, monkeypatch):
    reads, next_is_read = [], threading.Event()

    class Watched(ImageFiles):
        @contextmanager
        def reader(self, listing):
            reads.append(listing.keys[0])
            if len(reads) == 2:
                next_is_read.set()
            with ImageFiles.reader(self, listing) as read:
                yield read

    publish_all = files.publish_all

    def wait_and_publish(*args):
        assert next_is_read.wait(100), "the next shard is read after this one is synced"
        publish_all(*args)

    monkeypatch.setattr(files, "publish_all", wait_and_publish)
    dlio.pack(image_folder_as(Watched, photos), tmp_path / "out", num_shards=3, engine="serial")
    monkeypatch.undo()
    dlio.pack(image_folder(photos), tmp_path / "whole", num_shards=3, engine="serial")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_disk_that_refuses_ends_the_run_and_leaves_nothing(photos, tmp_path, monkeypatch, engine):
    def refuse(aside, out, names):
        raise StorageError(5, f"cannot sync {aside}")

    monkeypatch.setattr(files, "publish_all", refuse)
    with pytest.raises(StorageError, match="cannot sync"):
        dlio.pack(image_folder(photos), tmp_path / "out", num_shards=3, engine=engine)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [PARTIAL_NAME]
    assert not (tmp_path / "out" / ASIDE).exists()


def test_a_finished_shards_line_is_on_the_disk(photos, tmp_path, monkeypatch):
    done = dlio.pack(image_folder(photos), tmp_path / "out", num_shards=3, engine="serial")
    disk = synced.watched(monkeypatch)
    (tmp_path / "next").mkdir()
    with PartialManifest(tmp_path / "next", dlio.Manifest.load(done.root)) as partial:
        partial.append(done.shards[0])
        assert disk.has(tmp_path / "next" / PARTIAL_NAME)


def test_a_shard_is_listed_only_once_it_has_its_names(photos, tmp_path, monkeypatch):
    listed, publish_all = [], files.publish_all

    def looked_at(aside, out, names):
        listed.append([name for name in names if name.encode() in (out / PARTIAL_NAME).read_bytes()])
        publish_all(aside, out, names)

    monkeypatch.setattr(files, "publish_all", looked_at)
    dlio.pack(image_folder(photos), tmp_path / "out", num_shards=3, engine="processes")
    assert listed == [[], [], []]


def test_a_shards_line_is_sent_after_its_files(photos, tmp_path, monkeypatch):
    done = dlio.pack(image_folder(photos), tmp_path / "out", num_shards=1, engine="serial")
    sent = []

    @dataclass
    class Store:
        """Notes what is sent."""

        url: str

        def put(self, name, content):
            sent.append(name)

    monkeypatch.setattr(write, "RemoteFiles", Store)
    write._send("s3://bucket/packed", tmp_path / "out", done.shards[0])
    assert sent == [*(file.name for file in done.shards[0].files), f"{ASIDE}/{done.shards[0].name}"]


def test_a_shard_that_is_written_after_the_end_starts_no_thread_and_leaves_nothing(tmp_path):
    """An interrupt ends the publishing while a worker still writes; the fixture of all tests looks for threads."""
    (tmp_path / "aside").mkdir()
    may_end = threading.Event()

    def written(_: object) -> write.WrittenShard:
        assert may_end.wait(100)
        return write.WrittenShard(Shard("a", 0, ()), tmp_path, tmp_path / "aside")

    listed: list[Shard] = []
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(KeyboardInterrupt), publishing(Pool(executor, 1), listed.append) as pool:
            published = pool.executor.submit(written, None)
            raise KeyboardInterrupt
        may_end.set()
        with pytest.raises(CancelledError):
            published.result(timeout=100)
    assert (list(tmp_path.iterdir()), listed) == ([], [])
