"""Open shards and their pool: samples as packed, bounded files, threads, fork and pickling, damage that is named."""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlio import formats
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.pool import Folder, ShardPool
from dlio.dataset.reader import ShardReader
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, StorageError
from tests.helpers.damage import flipped
from tests.helpers.rounds import ROUNDS
from tests.loaders.packing import pack_samples

SCHEMA = Schema.of({"image": "bytes", "label": "int64"})
NUM_SAMPLES = 60
NUM_SHARDS = 10


def samples() -> list[Sample]:
    chance = random.Random(0)
    return [Sample(f"sub folder/{i}.jpg", {"image": chance.randbytes(50 + i), "label": i}) for i in range(NUM_SAMPLES)]


@pytest.fixture(scope="module", params=formats.names())
def packed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Manifest:
    """60 samples in 10 shards of each format in turn."""
    folder = tmp_path_factory.mktemp(request.param)
    return pack_samples(folder, SCHEMA, samples(), num_shards=NUM_SHARDS, name=request.param)


def num_open(folder: Path) -> int:
    """Returns how many files below `folder` this process has open."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            count += str(descriptor.readlink()).startswith(str(folder))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return count


def test_samples_come_back_with_their_exact_keys(packed: Manifest) -> None:
    pool = ShardPool(packed)
    assert [pool.read(index) for index in range(NUM_SAMPLES)] == samples()
    with pool.shard(3) as shard:
        assert len(shard) == 6
        assert [shard.key(i) for i in range(6)] == [sample.key for sample in samples()[18:24]]
        assert shard.column("label").tolist() == list(range(18, 24))
        assert shard.locate(2)[0].is_relative_to(packed.root)
        with pytest.raises(KeyError):
            shard.column("none")
    with pytest.raises(IndexError, match=f"no sample {NUM_SAMPLES}: .* has {NUM_SAMPLES}, numbered from 0"):
        pool.read(NUM_SAMPLES)
    pool.close()


def test_a_shard_without_a_table_still_reads(packed: Manifest) -> None:
    shard = packed.shards[0]
    files = tuple(file for file in shard.files if not file.name.endswith(".samples.npz"))
    assert len(files) < len(shard.files)
    bare = type(shard)(shard.name, shard.num_samples, files)
    reader = ShardReader(packed, bare)
    assert [reader.read(i).fields for i in range(6)] == [sample.fields for sample in samples()[:6]]
    assert reader.column("label").tolist() == list(range(6)) and len([reader.key(i) for i in range(6)]) == 6
    reader.close()
    reader.close()


def test_a_shard_without_a_table_behind_a_link_is_compared_as_a_whole(packed: Manifest, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (base := tmp_path / "set/base0").symlink_to(packed.root)
    files = tuple(
        file.replace(name=f"base0/{file.name}") for file in packed.shards[0].files if "samples.npz" not in file.name
    )
    linked = replace(packed, root=tmp_path / "set")
    bare = type(packed.shards[0])(f"base0/{packed.shards[0].name}", packed.shards[0].num_samples, files)
    with closing(ShardReader(linked, bare)) as reader:
        assert reader.read(0).fields == samples()[0].fields
    with (
        flipped(base / packed.shards[0].files[0].name, 8 * 99),
        pytest.raises(CorruptRecordError, match=r"of: .*base0"),
    ):
        ShardReader(linked, bare)


def test_no_more_shards_stay_open_than_allowed(packed: Manifest) -> None:
    pool = ShardPool(packed, max_open=1)
    pool.read(0)
    open_for_one = num_open(packed.root)
    for index in random.Random(1).sample(range(NUM_SAMPLES), NUM_SAMPLES):
        assert pool.read(index).fields["label"] == index
        assert num_open(packed.root) == open_for_one
    pool.close()
    assert num_open(packed.root) == 0
    assert pool.read(5).key == "sub folder/5.jpg"  # the pool can be used again
    pool.close()


def test_several_data_sets_share_the_limit_of_open_shards(packed: Manifest) -> None:
    pool = pickle.loads(pickle.dumps(ShardPool(packed, max_open=1, more=[Folder(packed)])))
    pool.read(0)
    open_for_one, count = num_open(packed.root), len(packed.shards)
    for number in (0, count, 1, 2 * count - 1):
        with pool.shard(number) as shard:
            assert shard.read(0).fields["label"] == number % count * 6
        assert num_open(packed.root) == open_for_one
    pool.close()


def test_a_lent_shard_stays_open_until_it_is_given_back(packed: Manifest) -> None:
    pool = ShardPool(packed, max_open=1)
    with pool.shard(0) as first, pool.shard(1) as second, pool.shard(0) as again:
        assert again is first
        for index in range(12, NUM_SAMPLES, 6):
            pool.read(index)
        assert first.read(0).fields["label"] == 0 and second.read(0).fields["label"] == 6
    pool.close()


def test_a_shard_in_use_is_closed_once_given_back(packed: Manifest) -> None:
    pool = ShardPool(packed)
    with pool.shard(0) as shard:
        pool.read(6)
        pool.close()
        assert shard.read(0).fields["label"] == 0
        assert num_open(packed.root) > 0
    assert num_open(packed.root) == 0


class _Stuck:
    """A filling in which one shard does not arrive before `go_on` is set."""

    def __init__(self) -> None:
        self.is_waiting, self.go_on = threading.Event(), threading.Event()

    def prepare(self, names: Sequence[str]) -> tuple[str, ...]:
        if "hangs" in names:
            self.is_waiting.set()
            self.go_on.wait()
        return ()

    complete = prepare


def test_a_shard_whose_opening_hangs_keeps_nobody_else_waiting(packed: Manifest) -> None:
    hanging = Shard("hangs", 0, (File("hangs", 0, ""),))
    filling = _Stuck()
    pool = ShardPool(replace(packed, shards=(*packed.shards, hanging)), filling=filling)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as executor:
        stuck = executor.submit(lambda: pool.shard(NUM_SHARDS).__enter__())
        try:
            assert filling.is_waiting.wait(60)
            assert pool.read(7).fields["label"] == 7
            pool.close()
            assert not stuck.done()
        finally:
            filling.go_on.set()
        with pytest.raises(StorageError, match=r"cannot open the shard's file"):
            stuck.result()


def test_threads_read_what_one_thread_reads_while_shards_close(packed: Manifest) -> None:
    pool = ShardPool(packed, max_open=2)
    order = random.Random(2).choices(range(NUM_SAMPLES), k=400)
    with ThreadPoolExecutor(8) as executor:
        read = list(executor.map(pool.read, order))
    assert read == [samples()[index] for index in order]
    pool.close()


def test_forked_children_open_their_own_files(packed: Manifest) -> None:
    pool = ShardPool(packed)
    pool.read(0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pool.shard(0) as shard:
                status = 0 if shard.read(1).fields["label"] == 1 and pool.read(30).fields["label"] == 30 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.read(1) == samples()[1]
    pool.close()


def test_a_fork_amid_reading_threads_does_not_hang(packed: Manifest) -> None:
    pool = ShardPool(packed, max_open=1)
    stop = threading.Event()

    def read_on() -> None:
        while not stop.is_set():
            pool.read(random.randrange(NUM_SAMPLES))

    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4 * ROUNDS):
            child = os.fork()
            if child == 0:
                os._exit(0 if pool.read(7).fields["label"] == 7 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        pool.close()


def test_pools_pickle_without_their_files(packed: Manifest) -> None:
    pool = ShardPool(packed, max_open=3)
    pool.read(0)
    copy = pickle.loads(pickle.dumps(pool))
    assert num_open(packed.root) > 0
    pool.close()
    assert num_open(packed.root) == 0
    assert copy.read(9) == samples()[9]
    copy.close()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("damage", "kind", "problem"),
    [(Path.unlink, StorageError, "cannot open"), (cut, CorruptRecordError, r"expected \d+ bytes, found \d+")],
)
@pytest.mark.parametrize("which", [0, -1])
def test_missing_and_cut_files_are_named(
    packed: Manifest, tmp_path: Path, damage: Callable[[Path], None], kind: type[Exception], problem: str, which: int
) -> None:
    shutil.copytree(packed.root, tmp_path / "copy")
    manifest = Manifest.load(tmp_path / "copy")
    name = manifest.shards[4].files[which].name
    damage(tmp_path / "copy" / name)
    pool = ShardPool(manifest)
    with pytest.raises(kind, match=problem) as caught:
        pool.read(25)
    assert name in str(caught.value)
    assert pool.read(24 - 6).fields["label"] == 18
    pool.close()


def test_a_record_that_differs_from_what_was_packed_is_named(tmp_path: Path) -> None:
    """LMDB keeps no checksum of its own: the table's finds the change."""
    manifest = pack_samples(tmp_path, SCHEMA, samples(), num_shards=1, name="lmdb")
    image = samples()[20].fields["image"]
    path = next(tmp_path / file.name for file in manifest.shards[0].files if file.name.endswith(".mdb"))
    data = path.read_bytes()
    assert data.count(image) == 1
    path.write_bytes(data.replace(image, image[:-1] + bytes([image[-1] ^ 1])))
    pool = ShardPool(manifest)
    with pytest.raises(CorruptRecordError, match=r"record 20.*'sub folder/20\.jpg' is not what was packed") as caught:
        pool.read(20)
    assert caught.value.record == 20
    assert pool.read(21).fields["label"] == 21
    pool.close()


def test_a_shard_with_another_number_of_records_is_refused(packed: Manifest) -> None:
    shard = packed.shards[0]
    files = tuple(file for file in shard.files if not file.name.endswith(".samples.npz"))
    with pytest.raises(CorruptRecordError, match="the manifest says 5"):
        ShardReader(packed, type(shard)(shard.name, 5, files))
    assert num_open(packed.root) == 0
    assert np.array_equal(packed.offsets, np.arange(0, 61, 6))


def test_no_more_than_half_of_the_descriptors_are_taken(tmp_path: Path) -> None:
    manifest = pack_samples(tmp_path / "packed", SCHEMA, samples(), num_shards=NUM_SAMPLES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = 80 + 2 * len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, hard))
    try:
        with closing(ShardPool(manifest)) as pool:
            assert [pool.read(index).fields["label"] for index in range(NUM_SAMPLES)] == list(range(NUM_SAMPLES))
            assert min(lowered // 4, NUM_SAMPLES) <= num_open(manifest.root) <= lowered // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
