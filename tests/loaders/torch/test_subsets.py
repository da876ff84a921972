"""Torch's Subset, random_split, ConcatDataset and WeightedRandomSampler: each sample once, resumed anywhere."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import pytest

import dlio
from dlio.dataset.pool import ShardPool
from dlio.errors import UsageError
from dlio.images import CenterCrop
from dlio.loaders.sampling.order import Window
from tests.helpers.images import make_image_folder
from tests.helpers.lazy import Lazy

torch = Lazy("torch")
ConcatDataset = Lazy("torch.utils.data", "ConcatDataset")
Subset = Lazy("torch.utils.data", "Subset")
WeightedRandomSampler = Lazy("torch.utils.data", "WeightedRandomSampler")
random_split = Lazy("torch.utils.data", "random_split")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
Mixture = Lazy("dlio.loaders.torch", "Mixture")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


@pytest.fixture
def dataset(tmp_path):
    make_image_folder(tmp_path / "photos", {"dog": 11, "cat": 16, "owl": 9})
    dlio.pack(tmp_path / "photos", tmp_path / "packed", num_shards=3, engine="serial")
    dataset = PackedDataset(tmp_path / "packed", CenterCrop(8))
    yield dataset
    dataset.packed.close()


def read(loader):
    return [tuple(image.flatten().tolist()) for images, _ in loader for image in images]


@pytest.mark.parametrize("shuffle", [False, True, Window(2)])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_part_is_read_once_and_resumed(dataset, shuffle, threads):
    part, rest = random_split(dataset, [20, 16], torch.Generator().manual_seed(1))
    options = {"batch_size": 3, "shuffle": shuffle, "num_workers": threads, "seed": 5}
    loader = DataLoader(part, **options)
    whole = read(loader)
    assert sorted(whole) == sorted(tuple(part[i][0].flatten().tolist()) for i in range(20))
    assert not set(whole) & set(read(DataLoader(rest, **options)))
    again, batches = DataLoader(part, **options), []
    for batch in again:
        batches.append(batch)
        if len(batches) == 3:
            state = again.state_dict()
            break
    again.close()
    resumed = DataLoader(part, **options)
    resumed.load_state_dict(state)
    assert read(batches) + read(resumed) == whole
    with pytest.raises(UsageError, match="belongs to another data set"):
        DataLoader(rest, **options).load_state_dict(state)


def test_ranks_share_a_part(dataset):
    part = Subset(dataset, range(3, 31, 2))
    ranks = [read(DataLoader(part, batch_size=2, shuffle=True, rank=rank, world_size=2, seed=1)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    assert {*ranks[0], *ranks[1]} == {tuple(part[i][0].flatten().tolist()) for i in range(len(part))}


def arriving(dataset, told):
    """Returns the data set as if a process that knows the order was filling its folder."""
    filling = SimpleNamespace(expect=told.put, prepare=lambda names: (), counts=dict, progress=str)
    found = copy(dataset)
    pool = ShardPool(dataset.packed.manifest, filling=filling)
    found.packed = found.packed.over(replace(found.packed.opened, pool=pool))
    return found


def test_a_folder_being_filled_is_told_the_shards_of_a_part(dataset):
    told = Queue()
    read(DataLoader(Subset(arriving(dataset, told), [35, 13, 34]), batch_size=2))
    assert told.get(timeout=60) == [1, 2]


def test_each_folder_being_filled_is_told_its_own_shards(dataset):
    told = [Queue(), Queue()]
    both = ConcatDataset([arriving(dataset, told[0]), dataset, arriving(dataset, told[1])])
    read(DataLoader(Subset(both, [35, 80, 107]), batch_size=1))
    assert [each.get(timeout=60) for each in told] == [[2], [0, 2]]


def test_a_part_of_a_part_under_a_sampler_of_its_own(dataset):
    part = Subset(Subset(dataset, [30, 2, 17, 5]), [3, 0, 1])
    read_in_order = read(DataLoader(part, batch_size=2, sampler=[2, 0, 1]))
    assert read_in_order == [tuple(dataset[row][0].flatten().tolist()) for row in (2, 5, 30)]
    assert DataLoader(part, batch_size=2).dataset.targets.tolist() == dataset.targets[[2, 5, 30]].tolist()


def test_a_weighted_sampler_draws(dataset):
    weights = (torch.tensor(dataset.targets.tolist()) == 1).double()
    loader = DataLoader(dataset, batch_size=8, sampler=WeightedRandomSampler(weights, 32))
    assert {label for _, labels in loader for label in labels.tolist()} == {1}


def test_each_rank_draws_by_its_own_weighted_sampler(dataset):
    def drawn(rank, threads):
        sampler = WeightedRandomSampler(torch.ones(36), 18, generator=torch.Generator().manual_seed(rank))
        return read(DataLoader(dataset, 4, sampler=sampler, num_workers=threads, rank=rank, world_size=2))

    ranks = [drawn(0, 2), drawn(1, 2)]
    assert [len(rank) for rank in ranks] == [18, 18] and ranks[0] != ranks[1]
    assert ranks == [drawn(0, 0), drawn(1, 0)]


def test_a_row_that_is_not_there_is_an_error(dataset):
    with pytest.raises(IndexError, match=r"no sample 36: .* has 36, numbered from 0"):
        DataLoader(Subset(dataset, [36]), batch_size=1)


def test_a_path_is_opened_with_the_words_of_a_dataset(dataset):
    by_path = DataLoader(
        str(dataset.manifest.root), 4, transform=CenterCrop(8), fields=("image", "label"), upright=True
    )
    assert [len(labels) for _, labels in by_path] == [4] * 9 and by_path.dataset.packed.upright
    by_path.close()
    with pytest.raises(UsageError, match="images of different sizes cannot form a batch"):
        DataLoader(str(dataset.manifest.root))


@pytest.mark.parametrize("transform", [CenterCrop, 224, "crop"])
def test_a_transform_that_is_none_is_refused(dataset, transform):
    with pytest.raises(UsageError, match="transform"):
        PackedDataset(dataset.manifest, transform)


def test_what_it_is_shows_in_a_line(dataset):
    assert repr(dataset).startswith("<PackedDataset of 36 samples (image: bytes, label: int64, 3 classes) in 3 shards")
    assert "shuffle True, seed 7, epoch 0" in repr(DataLoader(dataset, shuffle=True, seed=7))


@pytest.fixture
def other(tmp_path, dataset):
    make_image_folder(tmp_path / "more", {"dog": 5, "cat": 3, "owl": 4}, "JPEG")
    dlio.pack(tmp_path / "more", tmp_path / "other", format="recordio", num_shards=2, engine="serial")
    other = PackedDataset(tmp_path / "other", CenterCrop(8))
    yield other
    other.packed.close()


@pytest.mark.parametrize("shuffle", [False, True])
def test_joined_sets_are_read_once_and_resumed(dataset, other, shuffle):
    joined = ConcatDataset([dataset, Subset(other, [7, 2, 11]), other])
    options = {"batch_size": 4, "shuffle": shuffle, "num_workers": 2, "seed": 5}
    loader = DataLoader(joined, **options)
    whole = read(loader)
    assert sorted(whole) == sorted(tuple(joined[i][0].flatten().tolist()) for i in range(len(joined)))
    batches = iter(loader)
    begun = [next(batches) for _ in range(5)]
    state = loader.state_dict()
    loader.close()
    resumed = DataLoader(joined, **options)
    resumed.set_epoch(state["epoch"])
    resumed.load_state_dict(state)
    left = read(resumed)
    again = DataLoader(joined, **options)
    again.set_epoch(state["epoch"])
    assert read(begun) + left == read(again)
    with pytest.raises(UsageError, match="another data set"):
        DataLoader(ConcatDataset([dataset, other]), **options).load_state_dict(state)


def test_a_split_of_joined_sets_has_their_labels(dataset, other):
    part, _ = random_split(ConcatDataset([dataset, other]), [30, 18], torch.Generator().manual_seed(2))
    chosen = DataLoader(part, batch_size=5, num_workers=1)
    labels = [*dataset.targets.tolist(), *other.targets.tolist()]
    assert chosen.dataset.targets.tolist() == [labels[row] for row in sorted(part.indices)]
    assert [label for _, batch in chosen for label in batch.tolist()] == chosen.dataset.targets.tolist()


def test_sets_that_differ_are_not_joined(dataset, other, tmp_path):
    bare = PackedDataset(other.manifest)
    with pytest.raises(UsageError, match="different transforms"):
        DataLoader(ConcatDataset([dataset, bare]), batch_size=2)
    make_image_folder(tmp_path / "birds", {"emu": 2})
    birds = PackedDataset(dlio.pack(tmp_path / "birds", tmp_path / "b", engine="serial"), CenterCrop(8))
    with pytest.raises(UsageError, match=r"classes .* differ"):
        DataLoader(ConcatDataset([dataset, birds]), batch_size=2)


def test_a_mixture_is_one_data_set_of_every_loader(dataset, tmp_path):
    make_image_folder(tmp_path / "more", {"dog": 2, "cat": 2, "owl": 2})
    dlio.pack(tmp_path / "more", tmp_path / "second", engine="serial")
    mixture = Mixture([(tmp_path / "packed", 3), (tmp_path / "second", 1)], epoch_samples=48)
    mixed = PackedDataset(mixture, CenterCrop(8))
    assert len(mixed) == 42
    ranks = [read(DataLoader(mixed, batch_size=4, shuffle=True, rank=rank, world_size=2, seed=1)) for rank in range(2)]
    assert [len(each) for each in ranks] == [24, 24]
    assert {*ranks[0], *ranks[1]} <= {tuple(mixed[i][0].flatten().tolist()) for i in range(42)}
    both = ConcatDataset([mixed, Subset(dataset, [3, 1])])
    assert len(read(DataLoader(both, batch_size=4, shuffle=True))) == 44
    with pytest.raises(UsageError, match="cannot be joined"):
        dlio.pack(tmp_path / "photos", tmp_path / "third", engine="serial", label_offset=1)
        PackedDataset(Mixture([(tmp_path / "packed", 3), (tmp_path / "third", 1)]))
