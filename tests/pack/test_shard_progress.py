"""The progress within unfinished shards; its table is removed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.pack import shard_progress
from dlio.pack.index import index
from dlio.pack.inspect.verify import verify
from dlio.pack.shard_progress import EVERY, Row, Watch, watching
from tests.helpers.images import make_image_folder

COUNT = 4 * EVERY + 3


@pytest.fixture
def photos(tmp_path) -> Path:
    make_image_folder(tmp_path / "in", {"cat": COUNT})
    return tmp_path / "in"


class Seen(Watch):
    """Keeps what the table holds of each shard when it is reported."""

    def __init__(self):
        super().__init__()
        self.at_the_end = []

    def finished(self, shard):
        self.at_the_end.append(self.now())
        super().finished(shard)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_every_verb_tells_how_far_it_is_within_a_shard(photos, tmp_path, engine):
    size = sum(path.stat().st_size for path in photos.rglob("*.png"))
    with watching(Seen()) as packing:
        manifest = dlio.pack(dlio.sources.image_folder(photos), tmp_path / "out", num_shards=1, engine=engine)
        assert packing.now() == (0, 0)
    [(samples, num_bytes)] = packing.at_the_end
    assert 3 * EVERY <= samples <= COUNT and 0.7 * size < num_bytes <= size
    with watching(Seen()) as verifying:
        assert verify(manifest, workers=1) == []
    [(samples, num_bytes)] = verifying.at_the_end
    assert 0.9 * COUNT < samples < COUNT
    assert 0.9 * manifest.num_bytes < num_bytes < manifest.num_bytes
    for path in (manifest.root / "manifest.jsonl", *manifest.root.glob("*.npz")):
        path.unlink()
    with watching(Seen()) as indexing:
        index(manifest.root, format="tfrecord", workers=1)
    [(_, num_bytes)] = indexing.at_the_end
    assert 0.9 * size < num_bytes < manifest.num_bytes


def test_rows_add_up_and_a_finished_shard_counts_no_more():
    with watching(Watch()) as watch:
        rows = shard_progress.rows(["a", "b", "c"])
        shard_progress.counts(rows["a"])[:] = 3, 300
        shard_progress.counts(rows["c"])[:] = 4, 400
        assert watch.now() == (7, 700)
        shard_progress.finished("a")
        shard_progress.finished("unknown")
        assert watch.now() == (4, 400)
        assert Path(rows["b"].path).is_relative_to("/proc")  # so a killed run leaves no file
        own = np.memmap(rows["b"].path, np.int64, shape=(3, 2))
        assert own[2].tolist() == [4, 400]
    assert not Path(rows["a"].path).exists() or str(Path(rows["a"].path).readlink()) != rows["a"].name


def test_nobody_watches_and_nothing_is_written():
    assert shard_progress.rows(["a"]) == {}
    shard_progress.finished("a")


def test_a_worker_that_does_not_see_the_table_works_on(tmp_path):
    (tmp_path / "other").write_bytes(bytes(16))
    os.mkfifo(tmp_path / "pipe")
    for name in ("absent", "other", "pipe"):
        row = Row(str(tmp_path / name), "/memfd:dlio-0 (deleted)", 0, 1)
        shard_progress.counts(row)[:] = 1, 1
        assert np.array_equal(shard_progress.counts(row), [0, 0])
    assert (tmp_path / "other").read_bytes() == bytes(16)
