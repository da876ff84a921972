"""PackedDataset instead of ImageFolder: alone, and under torch's own DataLoader, samplers and worker processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, ManifestError, StorageError, UsageError
from dlio.images import RandomResizedCrop, Resize
from tests.helpers.images import encoded
from tests.helpers.lazy import Lazy
from tests.loaders.packing import damage, pack_samples
from tests.loaders.photos import NUM_PHOTOS, numbers

torch = Lazy("torch")
BatchSampler = Lazy("torch.utils.data", "BatchSampler")
DataLoader = Lazy("torch.utils.data", "DataLoader")
DistributedSampler = Lazy("torch.utils.data", "DistributedSampler")
RandomSampler = Lazy("torch.utils.data", "RandomSampler")
Subset = Lazy("torch.utils.data", "Subset")
loaders = Lazy("dlio.loaders.torch")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


def number_of(image: Image.Image | torch.Tensor) -> int:
    """Returns which photo an image was made of."""
    return int(image[0, 0, 0]) if isinstance(image, torch.Tensor) else image.getpixel((0, 0))[0]


def test_samples_are_those_of_image_folder(photos: Path, packed_anyhow: Manifest) -> None:
    dataset = PackedDataset(packed_anyhow.root)
    files = sorted(photos.glob("*/*.png"))
    assert len(dataset) == len(files) == NUM_PHOTOS
    assert dataset.classes == ["ant", "bee", "cat"]
    assert dataset.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    for index, file in enumerate(files):
        image, label = dataset[index]
        assert image.mode == "RGB" and image.tobytes() == Image.open(file).convert("RGB").tobytes()
        assert type(label) is int and label == dataset.class_to_idx[file.parent.name] == dataset.targets[index]
        assert dataset.samples[index] == (f"{file.parent.name}/{file.name}", label)
    assert dataset.imgs[-1] == dataset.samples[NUM_PHOTOS - 1]
    assert dataset.samples[:2] == [dataset.samples[0], dataset.samples[1]]
    assert number_of(dataset[-1][0]) == NUM_PHOTOS - 1
    dataset.packed.close()


@pytest.mark.parametrize("index", [NUM_PHOTOS, -NUM_PHOTOS - 1])
def test_there_is_no_sample_beyond_the_end(packed: Manifest, index: int) -> None:
    dataset = PackedDataset(packed)
    for read in (dataset.__getitem__, dataset.samples.__getitem__):
        with pytest.raises(IndexError, match="has 41"):
            read(index)


def test_a_transform_of_dlio_gives_uint8_tensors(packed: Manifest) -> None:
    dataset = PackedDataset(packed, transform=Resize((16, 12)))
    image, label = dataset[5]
    assert image.dtype == torch.uint8 and image.shape == (3, 16, 12) and type(label) is int
    whole = PackedDataset(packed)[5][0].resize((12, 16), Image.Resampling.BILINEAR)
    assert (image.permute(1, 2, 0).numpy() == np.asarray(whole)).all()
    dataset.packed.close()


def test_any_callable_gets_the_pil_image(packed: Manifest) -> None:
    dataset = PackedDataset(packed, transform=lambda image: image.size, target_transform=lambda label: -label)
    assert dataset[40] == ((24, 20), -2)
    with_targets = PackedDataset(packed, transform=Resize(8), target_transform=lambda label: label + 10)
    assert with_targets[40][1] == 12
    dataset.packed.close()
    with_targets.packed.close()


def test_random_boxes_follow_torchs_random_state(packed: Manifest) -> None:
    dataset = PackedDataset(packed, transform=RandomResizedCrop(16, flip=True))

    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.stack([dataset[3][0], dataset[3][0]])

    assert (draw(1) == draw(1)).all()
    assert (draw(1) != draw(2)).any()
    assert (draw(1)[0] != draw(1)[1]).any()
    dataset.packed.close()


def test_label_offset_is_taken_off(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"}, ("ant", "bee"), label_offset=1)
    samples = [Sample(str(i), {"image": b"", "label": 1 + i % 2}) for i in range(4)]
    dataset = PackedDataset(pack_samples(tmp_path, schema, samples, num_shards=1))
    assert dataset.targets.tolist() == [0, 1, 0, 1]
    assert dataset.samples[3] == ("3", 1)
    dataset.packed.close()


def test_other_schemas_give_dicts_of_their_fields(tmp_path: Path) -> None:
    schema = Schema.of(
        {"frames": "bytes[]", "name": "str", "pose": "float32[3]", "points": "float64[?,2]", "id": "uint8"}
    )
    values = [
        {"frames": [b"a"] * i, "name": f"n{i}", "pose": np.full(3, i, "float32"), "points": np.ones((i, 2)), "id": i}
        for i in range(5)
    ]
    manifest = pack_samples(tmp_path, schema, [Sample(str(i), v) for i, v in enumerate(values)], num_shards=2)
    dataset = PackedDataset(manifest)
    sample = dataset[2]
    assert sample["frames"] == [b"a", b"a"] and sample["name"] == "n2" and sample["id"] == 2
    assert sample["pose"].dtype == torch.float32 and sample["pose"].tolist() == [2, 2, 2]
    assert sample["points"].shape == (2, 2) and sample["points"].dtype == torch.float64
    with pytest.raises(UsageError, match="no field 'label'"):
        _ = dataset.targets
    with pytest.raises(UsageError, match="no field 'image'"):
        PackedDataset(manifest, transform=Resize(8))
    dataset.packed.close()


def test_a_function_of_the_image_alone_is_refused_with_boxes(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "boxes": "float32[?,4]", "labels": "int64[]"})
    fields = {
        "image": encoded(Image.new("RGB", (8, 8))),
        "boxes": np.ones((1, 4), "float32"),
        "labels": np.ones(1, int),
    }
    manifest = pack_samples(tmp_path, schema, [Sample("a", fields)], num_shards=1)
    with pytest.raises(UsageError, match=r"gets the image only, but .* has 'boxes', 'labels', which have to move"):
        PackedDataset(manifest, transform=lambda image: image.crop((0, 0, 4, 4)))
    dataset = PackedDataset(manifest)
    assert dataset[0]["image"].size == (8, 8) and dataset[0]["boxes"].tolist() == [[1, 1, 1, 1]]
    dataset.packed.close()


def test_vectors_of_labels_are_tensors(tmp_path: Path, photos: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "float32[14]"}, tuple(f"finding {i}" for i in range(14)))
    picture = next(photos.glob("*/*.png")).read_bytes()
    labels = np.eye(14, dtype="float32")
    samples = [Sample(str(i), {"image": picture, "label": labels[i]}) for i in range(14)]
    dataset = PackedDataset(pack_samples(tmp_path, schema, samples, num_shards=2), transform=Resize(8))
    image, label = dataset[3]
    assert image.shape == (3, 8, 8) and label.dtype == torch.float32 and label.tolist() == labels[3].tolist()
    assert (dataset.targets == labels).all()
    images, batch_labels = next(iter(DataLoader(dataset, batch_size=14)))
    assert images.shape == (14, 3, 8, 8) and (batch_labels.numpy() == labels).all()
    dataset.packed.close()


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), ("spawn", 1), ("forkserver", 1)])
def test_torchs_worker_processes_see_every_sample_once(packed: Manifest, context: str, num_workers: int) -> None:
    dataset = PackedDataset(packed, transform=Resize(16))
    first = dataset[0]  # its shard is open before the workers start
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers, multiprocessing_context=context)
    batches = list(loader)
    assert sorted(numbers(batches)) == list(range(NUM_PHOTOS))
    images, labels = batches[0]
    assert images.dtype == torch.uint8 and images.shape == (4, 3, 16, 16) and labels.dtype == torch.int64
    assert (dataset[0][0] == first[0]).all()
    dataset.packed.close()


def test_distributed_sampler_and_subset_work(packed: Manifest) -> None:
    dataset = PackedDataset(packed, transform=Resize(16))
    seen: list[int] = []
    for rank in range(2):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, drop_last=False)  # type: ignore[var-annotated]
        seen += numbers(DataLoader(dataset, batch_size=4, sampler=sampler))
    assert set(seen) == set(range(NUM_PHOTOS)) and len(seen) == NUM_PHOTOS + 1
    assert numbers(DataLoader(Subset(dataset, [5, 3, 3]), batch_size=2)) == [5, 3, 3]
    dataset.packed.close()


def test_a_batch_sampler_asks_for_whole_batches(packed: Manifest) -> None:
    class Counted(loaders.PackedDataset):
        asked: ClassVar[list[list[int]]] = []

        def __getitems__(self, indices: Sequence[int]) -> list[Any]:
            self.asked.append(list(indices))
            return super().__getitems__(indices)

    dataset = Counted(packed, transform=Resize(16))
    batches = BatchSampler(RandomSampler(dataset, generator=torch.Generator().manual_seed(3)), 4, drop_last=True)
    seen = numbers(DataLoader(dataset, batch_sampler=batches))
    assert [len(asked) for asked in dataset.asked] == [4] * 10
    assert seen == [number for asked in dataset.asked for number in asked] and len(set(seen)) == 40
    dataset.packed.close()


def test_pickled_datasets_read_the_same(packed: Manifest) -> None:
    dataset = PackedDataset(packed, transform=Resize(8))
    before = dataset[7]
    copy = pickle.loads(pickle.dumps(dataset))
    assert (copy[7][0] == before[0]).all() and copy.classes == dataset.classes
    dataset.packed.close()
    copy.packed.close()


def damaged_copy(packed: Manifest, folder: Path, damage: Callable[[Path], object]) -> PackedDataset:
    """Returns the data set after `damage` was done to the records of its third shard."""
    shutil.copytree(packed.root, folder)
    damage(folder / packed.shards[2].files[0].name)
    return PackedDataset(folder, transform=Resize(8))


def damage_found(loader: DataLoader) -> CorruptRecordError:
    """Returns what an epoch raises, without the frames in which the workers are still referred to."""
    try:
        list(loader)
    except CorruptRecordError as error:
        return error.with_traceback(None)
    pytest.fail("nothing was found")


def test_damage_comes_through_worker_processes_as_itself(packed: Manifest, tmp_path: Path) -> None:
    copy = Manifest.load(shutil.copytree(packed.root, tmp_path / "a copy: of, many"))
    damage(copy, record=3, shard=2)
    dataset = PackedDataset(copy, transform=Resize(8))
    direct = damage_found(DataLoader(dataset, batch_size=4))
    carried = damage_found(DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork"))
    assert str(carried) == str(direct) and direct.record == 3
    (note,) = vars(carried).pop("__notes__")
    assert vars(carried) == vars(direct) and "DataLoader worker process 0" in note
    dataset.packed.close()


@pytest.mark.parametrize(
    ("damage", "problem"), [(lambda path: path.unlink(), "cannot open"), (lambda path: os.truncate(path, 9), "found 9")]
)
def test_missing_and_cut_shards_are_named(
    packed: Manifest, tmp_path: Path, damage: Callable[[Path], object], problem: str
) -> None:
    dataset = damaged_copy(packed, tmp_path / "copy", damage)
    with pytest.raises((StorageError, CorruptRecordError), match=rf"shard-0*2\D.*{problem}|{problem}.*shard-0*2\D"):
        list(DataLoader(dataset, batch_size=4))
    dataset.packed.close()


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64"})
    samples = [Sample(f"some/{i}.png", {"image": b"no image", "label": 0}) for i in range(3)]
    manifest = pack_samples(tmp_path, schema, samples, num_shards=1)
    for transform in (None, Resize(8), lambda image: image):
        dataset = PackedDataset(manifest, transform=transform)
        with pytest.raises(
            CorruptRecordError, match=r"tfrecord, record 1, offset \d+: sample 'some/1.png': the image cannot"
        ):
            dataset[1]
        dataset.packed.close()


def test_a_folder_without_a_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="does not exist"):
        PackedDataset(tmp_path)


def _read_in_child(dataset: PackedDataset, queue: multiprocessing.Queue[int]) -> None:
    queue.put(number_of(dataset[11][0]))
    dataset.packed.close()


def test_other_processes_read_on_their_own(packed: Manifest) -> None:
    dataset = PackedDataset(packed)
    assert number_of(dataset[11][0]) == 11
    started = multiprocessing.get_context("fork")
    queue = started.Queue()
    process = started.Process(target=_read_in_child, args=(dataset, queue))
    process.start()
    assert queue.get(timeout=60) == 11
    process.join()
    queue.close()
    queue.join_thread()
    assert number_of(dataset[12][0]) == 12
    dataset.packed.close()


@pytest.mark.parametrize("index", [1.5, "1", None])
def test_numbers_that_are_not_whole_are_refused(packed: Manifest, index: object) -> None:
    dataset = PackedDataset(packed, Resize(8))
    for read in (dataset.__getitem__, dataset.samples.__getitem__, dataset.packed.key):
        with pytest.raises(TypeError, match=rf"sample {index!r} of 41: expected a whole number"):
            read(index)  # type: ignore[arg-type]
    assert dataset[np.int64(1)][1] == dataset[torch.tensor(1)][1] == dataset[1][1]  # type: ignore[index]


@pytest.mark.parametrize(("dtype", "shape"), [("int64", (0,)), ("float32[14]", (0, 14))])
def test_a_data_set_without_samples_has_no_labels(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    schema = Schema.of({"image": "bytes", "label": dtype})
    targets = PackedDataset(pack_samples(tmp_path, schema, [], num_shards=0)).targets
    assert targets.shape == shape and targets.dtype == dtype.partition("[")[0]
