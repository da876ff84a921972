"""Damaged samples that are left out, and where the time of an epoch went."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import CorruptRecordError
from dlio.images import CenterCrop
from dlio.loaders.stats import Skips, verdict
from tests.helpers.images import image
from tests.helpers.lazy import Lazy
from tests.loaders.packing import damage, pack_samples

DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
COUNT = 12


@pytest.fixture
def packed(tmp_path: Path) -> Manifest:
    """Twelve images in two shards; the label of each is its number."""
    samples = [Sample(f"{n:02}.png", {"image": image(n), "label": n}) for n in range(COUNT)]
    return pack_samples(tmp_path / "packed", IMAGE_CLASSIFICATION, samples, num_shards=2)


def labels(loader: DataLoader) -> list[int]:
    return [label for _, batch in loader for label in batch.tolist()]


@contextmanager
def loader(manifest: Manifest, max_skipped: int, num_workers: int = 2) -> Iterator[DataLoader]:
    dataset = PackedDataset(manifest.root, transform=CenterCrop(16), max_skipped=max_skipped)
    with closing(dataset.packed):
        yield DataLoader(dataset, batch_size=4, num_workers=num_workers)


def test_a_damaged_sample_ends_the_epoch_by_name(packed):
    damage(packed, 2)
    named = pytest.raises(CorruptRecordError, match=r"shard-00000\.tfrecord, record 2, offset")
    with loader(packed, max_skipped=0) as strict, named:
        labels(strict)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damaged_samples_are_replaced_within_their_batch_and_counted(packed, num_workers):
    damage(packed, 2)
    damage(packed, 5)
    with loader(packed, max_skipped=2, num_workers=num_workers) as skipping:
        for _ in range(2):
            seen = labels(skipping)
            assert len(seen) == COUNT and len(skipping) == 3
            assert set(seen) == set(range(COUNT)) - {2, 5}
        assert skipping.stats()["skipped"] == 2


def test_one_damaged_sample_too_many_is_an_error(packed):
    damage(packed, 2)
    damage(packed, 5)
    with loader(packed, max_skipped=1) as skipping, pytest.raises(CorruptRecordError, match="record"):
        labels(skipping)


def test_stats_account_for_the_epoch(packed):
    with loader(packed, max_skipped=0) as measured:
        labels(measured)
        stats = measured.stats()
    assert stats["batches"] == 3 and stats["num_workers"] == 2 and stats["skipped"] == 0
    assert stats["epoch_seconds"] >= stats["wait_seconds"] > 0
    assert stats["read_seconds"] > 0 and stats["decode_seconds"] > 0
    assert stats["disk_bytes"] > 0 and stats["peer_bytes"] == stats["source_bytes"] == 0
    assert "the trainer waited" in measured.verdict()


def test_the_verdict_names_the_busiest_stage_and_what_to_do():
    stats = {"epoch_seconds": 10.0, "wait_seconds": 3.1, "num_workers": 2, "collate_seconds": 0.1}
    decoding = verdict(stats | {"read_seconds": 1.0, "decode_seconds": 18.0}, num_cores=16)
    assert decoding == (
        "the trainer waited 31% of 10.0 s: decode-bound, 2 threads; use 3 threads, or pack with --crop-ready "
        "or --decode-ready, or smaller images"
    )
    one = stats | {"num_workers": 1, "read_seconds": 1.0, "decode_seconds": 9.0}
    assert verdict(one, num_cores=1, faster="").endswith("decode-bound, 1 thread; pack smaller images")
    assert "decode-bound, no threads; use 2 threads, or" in verdict(one | {"num_workers": 0}, num_cores=2)
    reading = verdict(stats | {"read_seconds": 18.0, "decode_seconds": 1.0}, num_cores=2)
    assert "read-bound" in reading and "threads," not in reading
    idle = verdict(stats | {"read_seconds": 1.0, "decode_seconds": 1.0, "wait_seconds": 0.1}, num_cores=2)
    assert idle.endswith("the loader keeps up")


@pytest.mark.parametrize(("source", "peer", "name"), [(17.0, 0.5, "source"), (0.5, 17.0, "peer"), (0.5, 0.5, "read")])
def test_the_verdict_names_whom_reading_waits_for(source, peer, name):
    stats = {"epoch_seconds": 10.0, "wait_seconds": 9.0, "num_workers": 2, "collate_seconds": 0.1}
    stats |= {"read_seconds": 18.0, "decode_seconds": 1.0, "source_seconds": source, "peer_seconds": peer}
    assert f": {name}-bound, 2 threads; " in verdict(stats, num_cores=2)


def test_a_damaged_file_is_no_damaged_sample(packed):
    path = packed.root / packed.shards[1].files[0].name
    path.write_bytes(path.read_bytes()[:-1])
    named = pytest.raises(CorruptRecordError, match=r"shard-00001\D.*stage")
    with loader(packed, max_skipped=COUNT) as skipping, named:
        labels(skipping)


def test_damage_of_no_certain_sample_is_never_skipped():
    skips = Skips(5)
    skips.note(CorruptRecordError(Path("shard"), "cut off", record=3))
    with pytest.raises(CorruptRecordError, match="cut off"):
        skips.note(CorruptRecordError(Path("shard"), "cut off"))
    assert len(skips) == 1
