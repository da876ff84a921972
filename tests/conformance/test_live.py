"""Every loader gets the same batches, by digest, while any strategy stages the data, at any progress.

{replicate, broadcast, partition} x {while it is staged, cache too small} x {path, URL} x formats x 1 and 2 nodes.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.dataset.shard import files_of
from dlio.io import waits
from dlio.io.arrivals import arrived
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.stage import strategies
from dlio.stage.client.filling import LiveFilling
from dlio.stage.copies.folder import StagedFolder
from tests.helpers.agents import agents, end_agent
from tests.helpers.arriving import through
from tests.helpers.live import eventually
from tests.helpers.s3_server import s3_server
from tests.helpers.web import served
from tests.loaders.packing import pack_samples

STRATEGIES = [name for name in strategies.names() if not strategies.load(name).NEEDS.shared]
FORMATS = ("tfrecord", "hdf5", "lmdb")
BATCH, SHARDS, SAMPLES, SAMPLE_BYTES = 16, 6, 192, 6000
Start = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests."""


@pytest.fixture(scope="module", params=FORMATS)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """192 samples of random bytes and a label in 6 shards of each format."""
    chosen = random.Random(1)
    schema = Schema.of({"image": "bytes", "label": "int64"}, ("a", "b"), 0)
    samples = [
        Sample(f"{i:04}", {"image": chosen.randbytes(SAMPLE_BYTES + chosen.randrange(999)), "label": i % 2})
        for i in range(SAMPLES)
    ]
    return pack_samples(
        tmp_path_factory.mktemp("data") / request.param, schema, samples, num_shards=SHARDS, name=request.param
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with agents(tmp_path) as started:
        yield started


class Lengths:
    """The bytes of each sample, for torch's DataLoader."""

    def __init__(self, samples: PackedSamples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[str, bytes]:
        sample = self.samples.read([number])[0]
        return sample.key, sample.fields["image"]


def digests(
    samples: PackedSamples, rank: int = 0, world_size: int = 1, epochs: int = 2, lanes: int | None = None
) -> list[str]:
    """Returns a digest of each epoch's batches, and of the state after the first."""
    place = lambda: (rank, world_size)  # noqa: E731
    loader = Loader(ArrayBatches(samples), BATCH, shuffle=True, seed=5, num_workers=2, rank_and_size=place, lanes=lanes)
    found = []
    for _ in range(epochs):
        running = hashlib.blake2b(digest_size=8)
        for batch in loader:
            running.update(batch["label"].tobytes())
            for image in batch["image"]:
                running.update(image)
        found.append(running.hexdigest())
    found.append(repr(loader.state_dict()))
    loader.close()
    return found


def opened(dataset: str | Path, folder: Any, monkeypatch: pytest.MonkeyPatch) -> PackedSamples:
    """Returns the data set as a rank sees it on the node with the copy in `folder`."""
    monkeypatch.setenv("DLIO_STAGED", str(folder.dest))
    return PackedSamples(dataset)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_job_of_two_nodes_gets_the_batches_of_all_local(packed, strategy, start, monkeypatch):
    """All shards of both nodes are shuffled together, though each node of a partition keeps half of them."""
    folders = start(packed.root, strategy, 2)
    for rank, folder in enumerate(folders):
        samples = opened(packed.root, folder, monkeypatch)
        assert samples.opened.fillings or strategy != "partition"
        assert digests(samples, rank, 2) == digests(PackedSamples(packed), rank, 2)


@pytest.mark.parametrize(
    ("packed", "strategy"),
    [("tfrecord", "replicate"), ("hdf5", "broadcast"), ("lmdb", "partition")],
    indirect=["packed"],
)
def test_a_job_on_a_url_gets_the_batches_of_all_local(packed, strategy, start, monkeypatch):
    pytest.importorskip("aiohttp")
    with served(packed.root) as url:
        for rank, folder in enumerate(start(url, strategy, 2)):
            samples = opened(url, folder, monkeypatch)
            assert digests(samples, rank, 2) == digests(PackedSamples(packed), rank, 2)


@pytest.mark.parametrize("packed", ["tfrecord"], indirect=True)
def test_a_bucket_is_trained_from_at_once(packed, tmp_path, start, monkeypatch):
    """The README's first example, on a server of S3 that is its own process."""
    fsspec = pytest.importorskip("fsspec")
    with s3_server(monkeypatch):
        s3 = fsspec.filesystem("s3")
        s3.mkdir("photos")
        s3.put(f"{packed.root}/", "photos/packed/", recursive=True)
        samples = PackedSamples("s3://photos/packed", cache=tmp_path / "cache")
        assert digests(samples) == digests(PackedSamples(packed))
        end_agent(StagedFolder(tmp_path / "cache", packed.content_id))


@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("packed", ["tfrecord"], indirect=True)
def test_a_cache_too_small_passes_the_rest_through(packed, strategy, num_nodes, start, monkeypatch):
    folders = start(packed.root, strategy, num_nodes, cache_bytes=packed.num_bytes // 4)
    for rank, folder in enumerate(folders):
        samples = opened(packed.root, folder, monkeypatch)
        assert digests(samples, rank, num_nodes) == digests(PackedSamples(packed), rank, num_nodes)
        counts = arrived(samples.opened.fillings)
        assert counts.get("source_bytes", 0) + counts.get("peer_bytes", 0) > packed.num_bytes // 2 // num_nodes
        counted = _read_by(*samples.opened.fillings, packed)
        assert 0 < counted <= (waits.taken() or 0) + 1e-9  # which has the reads from this node's disk, too


def _read_by(filling: LiveFilling, packed: Manifest) -> float:
    """Reads all files in this thread, and returns the seconds that the filling has counted for it."""
    before = _seconds(filling)
    waits.taken()
    for file in files_of(packed.shards):
        with closing(through(filling.arrival(filling.manifest.root / file.name))) as arriving:
            arriving.read(0, file.num_bytes)
    return _seconds(filling) - before


def _seconds(filling: LiveFilling) -> float:
    return sum(value for key, value in filling.counts().items() if key.endswith("_seconds"))


@pytest.mark.parametrize("packed", ["hdf5"], indirect=True)
def test_a_cache_too_small_for_a_url_passes_the_rest_through(packed, start, monkeypatch):
    pytest.importorskip("aiohttp")
    with served(packed.root) as url:
        (folder,) = start(url, "replicate", 1, cache_bytes=packed.num_bytes // 4)
        assert digests(opened(url, folder, monkeypatch)) == digests(PackedSamples(packed))


@pytest.mark.parametrize("packed", ["tfrecord"], indirect=True)
def test_lanes_and_states_of_a_partition_are_those_of_all_local(packed, start, monkeypatch):
    folder = start(packed.root, "partition", 2)[1]
    samples = opened(packed.root, folder, monkeypatch)
    assert digests(samples, 1, 2, lanes=2) == digests(PackedSamples(packed), 1, 2, lanes=2)


@pytest.mark.parametrize("packed", ["lmdb"], indirect=True)
def test_a_copy_that_was_pickled_reads_the_same(packed, start, monkeypatch):
    """As torch's worker processes get it."""
    folder = start(packed.root, "partition", 2)[0]
    samples = pickle.loads(pickle.dumps(opened(packed.root, folder, monkeypatch)))
    assert digests(samples, 0, 2) == digests(PackedSamples(packed), 0, 2)


def test_tables_that_are_larger_than_their_shards_arrive_whole(tmp_path, start):
    schema = Schema.of({"label": "int64"}, ("a", "b"), 0)
    tiny = [Sample(f"{i:04}", {"label": i % 2}) for i in range(160)]
    packed = pack_samples(tmp_path / "tiny", schema, tiny, num_shards=80)
    loader = Loader(ArrayBatches(PackedSamples(packed.root, cache=tmp_path / "cache")), BATCH, num_workers=2)
    assert [label for batch in loader for label in batch["label"].tolist()] == [i % 2 for i in range(160)]
    loader.close()
    end_agent(StagedFolder(tmp_path / "cache", packed.content_id))


@pytest.mark.parametrize("packed", ["tfrecord"], indirect=True)
def test_an_agent_that_is_killed_is_started_again(packed, tmp_path, start):
    samples = PackedSamples(packed.root, cache=tmp_path / "cache")
    folder = StagedFolder(tmp_path / "cache", packed.content_id)
    loader = Loader(ArrayBatches(samples), BATCH, num_workers=0)
    labels = []
    for number, batch in enumerate(loader):
        if number % 4 == 1:
            end_agent(folder, signal.SIGKILL)
        labels += batch["label"].tolist()
    assert labels == [number % 2 for number in range(SAMPLES)]
    loader.close()
    end_agent(folder)


@pytest.mark.parametrize("packed", ["tfrecord"], indirect=True)
def test_a_finished_part_whose_agent_was_killed_is_still_read_with_the_others(packed, start, monkeypatch):
    """A loader without `cache=` has the agent started again: else its rank would read its own part only."""
    place = {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 1,
             "GROUP_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "killed", "DLIO_LAUNCHER": "torchrun"}  # fmt: skip
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    folder = start(packed.root, "partition", 2)[1]
    eventually(folder.has_manifest)
    end_agent(folder, signal.SIGTERM)
    assert opened(packed.root, folder, monkeypatch).opened.fillings
    end_agent(folder, signal.SIGKILL)
    assert digests(PackedSamples(packed.root), 1, 2) == digests(PackedSamples(packed), 1, 2)
    end_agent(folder)
    monkeypatch.setenv("SLURM_JOB_ID", "another")
    assert not PackedSamples(packed.root).opened.fillings


@pytest.mark.parametrize("packed", ["tfrecord"], indirect=True)
def test_torchs_worker_processes_read_what_other_nodes_keep(packed, start, monkeypatch):
    torch = pytest.importorskip("torch")
    from dlio.loaders.torch import PackedDataset

    folder = start(packed.root, "partition", 2)[0]
    monkeypatch.setenv("DLIO_STAGED", str(folder.dest))
    dataset = PackedDataset(packed.root)
    assert dataset.packed.opened.fillings
    assert len(dataset.packed.read([0])) == 1  # the parent is connected, which its children must not share
    loader = torch.utils.data.DataLoader(
        Lengths(dataset.packed), 16, num_workers=2, multiprocessing_context="fork", collate_fn=list
    )
    found = [pair for batch in loader for pair in batch]
    with closing(PackedSamples(packed)) as local:
        assert found == [Lengths(local)[number] for number in range(len(local))]
    dataset.packed.close()


@pytest.mark.parametrize("packed", ["tfrecord"], indirect=True)
def test_a_cache_is_filled_by_the_first_loader_and_found_by_the_next(packed, tmp_path, start, monkeypatch):
    """`cache=` starts the agent, `dlio.stage` waits for it, and what is left is an ordinary staged copy."""
    import dlio

    first = PackedSamples(packed.root, cache=tmp_path / "cache")
    assert digests(first) == digests(PackedSamples(packed))
    staged = dlio.stage(packed.root, tmp_path / "cache")
    again = PackedSamples(packed.root, cache=tmp_path / "cache")
    assert again.manifest.root == staged.root == first.manifest.root
    assert digests(again) == digests(PackedSamples(packed))
