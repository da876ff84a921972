"""dlio's DataLoader instead of torch's: its arguments, errors and batches; states."""

from __future__ import annotations

import inspect
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import UsageError
from dlio.images import RandomResizedCrop, Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.sampling.order import Window
from dlio.loaders.sampling.rank_share import Step
from tests.helpers.lazy import Lazy
from tests.loaders.packing import pack_samples
from tests.loaders.photos import NUM_PHOTOS, numbers

torch = Lazy("torch")
default_collate = Lazy("torch.utils.data", "default_collate")
loaders = Lazy("dlio.loaders.torch")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
End = Lazy("dlio.loaders.torch", "End")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
ItemBatches = Lazy("dlio.loaders.torch.samples", "ItemBatches")


def test_it_takes_all_that_torchs_takes_by_position_and_name() -> None:
    theirs = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values())
    ours = inspect.signature(loaders.DataLoader.__init__).parameters
    assert [p.name for p in theirs if p.kind is p.POSITIONAL_OR_KEYWORD] == [
        p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    of_all_loaders = {"shuffle": False, "num_workers": None, "timeout": None}  # see test_options.py
    for parameter in theirs:
        assert ours[parameter.name].default == of_all_loaders.get(parameter.name, parameter.default)


def test_every_argument_is_kept_as_an_attribute(packed: Manifest) -> None:
    loader = DataLoader(PackedDataset(packed, Resize(8)), 4, seed=3, lanes=1)
    of_samples = {"transform", "fields", "upright", "max_skipped", "cache"}  # the dataset has them
    for name in list(inspect.signature(loaders.DataLoader.__init__).parameters)[1:]:
        assert hasattr(loader, name) or name in of_samples, name
    assert (loader.batch_size, loader.seed, loader.end) == (4, 3, End.PAD)
    assert isinstance(loader, torch.utils.data.DataLoader) and isinstance(
        loader.sampler, torch.utils.data.DistributedSampler
    )


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"num_workers": 0, "prefetch_factor": 2},
        {"num_workers": 0, "persistent_workers": True},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": [1]},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": 0},
    ],
    ids="-".join,
)
def test_it_refuses_what_torch_refuses(packed: Manifest, options: dict[str, Any]) -> None:
    dataset = PackedDataset(packed, Resize(8))
    for loader_class in (torch.utils.data.DataLoader, DataLoader):
        with pytest.raises(ValueError):
            loader_class(dataset, **options)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_torch_forbids_to_change_cannot_be_changed(packed: Manifest, name: str) -> None:
    loader = DataLoader(PackedDataset(packed, Resize(8)), batch_size=4)
    with pytest.raises(ValueError, match="should not be set after"):
        setattr(loader, name, None)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_torchs(packed: Manifest, num_workers: int, drop_last: bool) -> None:
    dataset = PackedDataset(packed, transform=Resize(16))
    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=4, drop_last=drop_last))
    loader = DataLoader(dataset, batch_size=4, drop_last=drop_last, num_workers=num_workers)
    ours = list(loader)
    assert len(loader) == len(ours) == len(theirs)
    for (images, labels), (their_images, their_labels) in zip(ours, theirs, strict=True):
        assert images.dtype == their_images.dtype and labels.dtype == their_labels.dtype
        assert torch.equal(images, their_images) and torch.equal(labels, their_labels)
    loader.close()


def test_dicts_are_torchs(tmp_path: Path) -> None:
    schema = Schema.of({"name": "str", "pose": "float32[3]", "id": "int64"})
    rows = [{"name": f"n{i}", "pose": np.full(3, i, "float32"), "id": i} for i in range(6)]
    dataset = PackedDataset(pack_samples(tmp_path, schema, [Sample(r["name"], r) for r in rows], num_shards=2))
    theirs = next(iter(torch.utils.data.DataLoader(dataset, batch_size=3)))
    ours = next(iter(DataLoader(dataset, batch_size=3)))
    assert ours.keys() == theirs.keys() and ours["name"] == theirs["name"]
    for name in ("pose", "id"):
        assert ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name])
    dataset.packed.close()


@pytest.mark.parametrize("shuffle", [True, Window(2)], ids=str)
def test_epochs_follow_each_other_by_themselves(packed: Manifest, shuffle: Any) -> None:
    loader = DataLoader(PackedDataset(packed, Resize(16)), batch_size=8, shuffle=shuffle, num_workers=2)
    epochs = [numbers(loader) for _ in range(3)]
    assert all(sorted(epoch) == list(range(NUM_PHOTOS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    loader.sampler.set_epoch(1)
    assert list(loader.sampler) == epochs[1] and len(loader.sampler) == NUM_PHOTOS
    assert numbers(loader) == epochs[1]
    loader.close()


def test_masked_batches_tell_what_is_repeated(packed: Manifest) -> None:
    seen = []
    for rank in range(3):
        loader = DataLoader(PackedDataset(packed, Resize(16)), 4, True, end="mask", rank=rank, world_size=3)
        for images, labels, valid in loader:
            assert valid.dtype == torch.bool and len(valid) == len(labels)
            seen += images[valid][:, 0, 0, 0].tolist()
        loader.close()
    assert sorted(seen) == list(range(NUM_PHOTOS))


def test_lanes_keep_ranks_to_their_own_shards(packed: Manifest) -> None:
    shards_of_rank = []
    for rank in range(2):
        loader = DataLoader(PackedDataset(packed, Resize(16)), 4, True, lanes=2, rank=rank, world_size=2)
        shards_of_rank.append({packed.locate(number)[0] for number in numbers(loader)})
        loader.close()
    assert not shards_of_rank[0] & shards_of_rank[1]
    assert shards_of_rank[0] | shards_of_rank[1] == set(range(7))


def test_collate_fn_and_plain_callables_get_samples(packed: Manifest) -> None:
    raw = PackedDataset(packed)
    loader = DataLoader(raw, batch_size=4, num_workers=2, collate_fn=lambda items: [image.size for image, _ in items])
    assert next(iter(loader)) == [(24, 20), (24, 21), (24, 22), (24, 23)]
    loader.close()
    dataset = PackedDataset(packed, transform=lambda image: image.size[1], target_transform=lambda label: label + 5)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, end="mask")
    (heights, labels), valid = next(iter(loader))
    assert heights.tolist() == [20, 21, 22, 23] and labels.tolist() == [5] * 4 and valid.all()
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_a_collate_fn_that_returns_none_are_all_handed_out(packed: Manifest, num_workers: int) -> None:
    loader = DataLoader(PackedDataset(packed, Resize(8)), 4, num_workers=num_workers, collate_fn=lambda items: None)
    assert list(loader) == [None] * len(loader)


def test_collate_fn_gets_equal_boxes_with_any_threads(packed: Manifest) -> None:
    dataset = PackedDataset(packed, RandomResizedCrop(16, flip=True))
    images = []
    for num_workers in (0, 3):
        loader = DataLoader(dataset, 41, num_workers=num_workers, collate_fn=lambda items: default_collate(items))
        images.append(next(iter(loader))[0])
    images.append(next(iter(DataLoader(dataset, 41)))[0])
    assert torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])
    dataset.packed.close()


def test_an_order_of_ones_own_is_taken_as_it_is(packed: Manifest) -> None:
    dataset = PackedDataset(packed, Resize(16))
    by_sampler = DataLoader(dataset, 2, sampler=[9, 8, 7, 7, 3], num_workers=2, rank=1, world_size=3)
    assert numbers(by_sampler) == [9, 8, 7, 7, 3] and len(by_sampler) == 3
    by_batches = DataLoader(dataset, batch_sampler=[[4, 5, 6], [1]], num_workers=2)
    assert [len(labels) for _, labels in by_batches] == [3, 1] and len(by_batches) == 2
    for use in (by_batches.state_dict, lambda: by_batches.load_state_dict({})):
        with pytest.raises(UsageError, match="no state"):
            use()
    dataset.packed.close()


def test_what_makes_no_batch_is_refused(packed: Manifest) -> None:
    transformed = PackedDataset(packed, Resize(8))
    with pytest.raises(UsageError, match="give the PackedDataset a transform"):
        DataLoader(PackedDataset(packed), 4)
    with pytest.raises(UsageError, match="not list"):
        DataLoader([1, 2, 3], 4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batch_size=None"):
        DataLoader(transformed, None)
    with pytest.raises(UsageError, match="batch_size=None"):
        DataLoader(PackedDataset(packed, Resize(8)), batch_size=None, sampler=[0, 1])
    with pytest.raises(UsageError, match="both or neither"):
        DataLoader(transformed, 4, rank=1)


def test_seed_comes_from_the_generator_where_there_is_no_seed(packed: Manifest) -> None:
    dataset = PackedDataset(packed, Resize(16))
    by_generator = DataLoader(dataset, 8, True, generator=torch.Generator().manual_seed(11))
    assert (
        numbers(by_generator) == numbers(DataLoader(dataset, 8, True, seed=11)) != numbers(DataLoader(dataset, 8, True))
    )
    dataset.packed.close()


def test_leaving_the_loop_ends_the_threads(packed: Manifest) -> None:
    loader = DataLoader(PackedDataset(packed, Resize(16)), 4, num_workers=4)
    for _ in loader:
        break
    assert not [t.name for t in threading.enumerate() if t.name.startswith("dlio")]
    assert numbers(loader) == list(range(NUM_PHOTOS))
    loader.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("samples", -5), ("samples", 10**9), ("samples", 42), ("samples", 1.5), ("epoch", -1), ("epoch", "x")],
)
def test_numbers_that_no_state_holds_are_refused(packed: Manifest, name: str, value: object) -> None:
    loader = DataLoader(PackedDataset(packed, Resize(16)), 4, True)
    with pytest.raises(UsageError, match=f"the state has {name}={value!r}: expected a whole number from 0 to"):
        loader.load_state_dict({**loader.state_dict(), name: value})
    loader.load_state_dict({**loader.state_dict(), "samples": torch.tensor(12), "epoch": np.int64(1)})
    assert loader.state_dict()["samples"] == 12 and len(numbers(loader)) == NUM_PHOTOS - 12


@pytest.mark.parametrize("drop_last", [False, True])
def test_its_sampler_is_a_distributed_sampler_in_every_attribute(packed: Manifest, drop_last: bool) -> None:
    dataset = PackedDataset(packed, Resize(16))
    loader = DataLoader(dataset, 4, True, drop_last=drop_last, seed=5, rank=1, world_size=2)
    theirs = torch.utils.data.DistributedSampler(dataset, 2, 1, shuffle=True, seed=5)
    assert {name for name in vars(theirs) if not hasattr(loader.sampler, name)} == set()
    ours: Any = loader.sampler
    assert (ours.dataset, ours.num_replicas, ours.rank) == (dataset, 2, 1)
    assert (ours.shuffle, ours.seed, ours.drop_last, ours.epoch) == (True, 5, drop_last, 0)
    assert ours.num_samples == len(ours) == len(list(ours)) == (20 if drop_last else 21)
    assert ours.total_size == 2 * ours.num_samples
    loader.set_epoch(3)
    assert ours.epoch == 3


def test_a_timeout_names_the_shards_of_its_batch(packed: Manifest) -> None:
    go_on = threading.Event()

    def hang(label: int) -> int:
        go_on.wait(60)
        return label

    loader = DataLoader(PackedDataset(packed, Resize(8), hang), 4, num_workers=1, timeout=0.05)
    batches = iter(loader)
    with pytest.raises(TimeoutError, match=r"longer than 0.05 s, .* is 4 samples of shard-\d+ in .*: check"):
        next(batches)
    loader.close()
    go_on.set()


def test_of_many_shards_a_few_are_named(tmp_path: Path) -> None:
    samples = [Sample(str(i), {"number": i}) for i in range(9)]
    packed = pack_samples(tmp_path, Schema.of({"number": "int64"}), samples, num_shards=9)
    dataset = PackedDataset(packed)
    step = Step(np.arange(-1, 8), np.ones(9, np.bool_))
    names = f"shard-00008, shard-00000, shard-00001, shard-00002 and 5 more shards in {tmp_path}"
    for source in (ItemBatches(dataset), ArrayBatches(dataset.packed)):
        assert source.work(step, 0).about(0) == f"9 samples of {names}"


def test_values_of_another_kind_are_refused_by_name(packed: Manifest) -> None:
    dataset = PackedDataset(packed, Resize(16))
    with pytest.raises(UsageError, match="shuffle='yes': expected True"):
        DataLoader(dataset, 4, "yes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="timeout=3, num_workers=0: expected both above 0"):
        DataLoader(dataset, 4, timeout=3, num_workers=0)


def test_state_is_elastic(packed: Manifest) -> None:
    dataset = PackedDataset(packed, Resize(16))
    straight = numbers(DataLoader(dataset, 6, True, drop_last=True))
    first = [DataLoader(dataset, 3, True, drop_last=True, rank=rank, world_size=2) for rank in range(2)]
    iterators = [iter(loader) for loader in first]
    seen = {n for _ in range(2) for batches in iterators for n in numbers([next(batches)])}
    states = [loader.state_dict() for loader in first]
    assert states[0] == states[1]
    assert json.loads(json.dumps(states[0])) == states[0]
    resumed = DataLoader(dataset, 6, True, drop_last=True)
    resumed.load_state_dict(states[0])
    assert seen == set(straight[:12]) and numbers(resumed) == straight[12:]
    for loader in first:
        loader.close()
