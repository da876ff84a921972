"""Decode-ready records in loaders: the pixels are those of the JPEGs, and bytes that leave are JPEGs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio import formats, native
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, MissingPackageError, UsageError
from dlio.images import RandomResizedCrop, Resize, Transform
from dlio.loaders import batches
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.pack.recode import Recode
from dlio.sources import image_folder
from dlio.targets import WithTargets
from tests.helpers.decode_ready import PROGRESSIVE, damaged, needs_core, turned, write_images
from tests.helpers.images import encoded, photo
from tests.helpers.lazy import Lazy
from tests.loaders.packing import pack_samples

PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
pytestmark = needs_core
TRANSFORMS = [RandomResizedCrop(48, flip=True), RandomResizedCrop(32, interpolation="bicubic"), Resize((40, 56))]


@pytest.fixture(scope="module", params=formats.names())
def twins(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """The same images, unchanged and decode-ready."""
    root = tmp_path_factory.mktemp(request.param)
    write_images(root / "in")
    for name, recode in {"plain": None, "ready": Recode(decode_ready=True)}.items():
        options = {"format": request.param, "num_shards": 2, "engine": "serial"}
        dlio.pack(image_folder(root / "in"), root / name, recode=recode, **options)
    return root / "plain", root / "ready"


def made(folder: Path, transform: Transform | None, **options: object) -> list[batches.Batch]:
    with closing(PackedSamples(folder, transform, **options)) as samples:  # type: ignore[arg-type]
        loader = Loader(ArrayBatches(samples), 5, shuffle=True, seed=3, num_workers=2)
        return [dict(batch) for batch in loader]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("upright", [False, True])
def test_pixels_are_those_of_the_jpegs(twins: tuple[Path, Path], transform: Transform, upright: bool) -> None:
    one, other = (made(folder, transform, upright=upright) for folder in twins)
    assert len(one) == len(other) == 2
    for plain, ready in zip(one, other, strict=True):
        assert np.array_equal(plain["image"], ready["image"]) and np.array_equal(plain["label"], ready["label"])


def test_without_a_transform_images_are_the_jpegs(twins: tuple[Path, Path]) -> None:
    one, other = (made(folder, None) for folder in twins)
    pairs = [pair for batch in zip(one, other, strict=True) for pair in zip(*(b["image"] for b in batch), strict=True)]
    progressive = (twins[0].parent / "in" / PROGRESSIVE).read_bytes()
    differing = [bytes(plain) for plain, ready in pairs if bytes(plain) != bytes(ready)]
    assert len(pairs) == 10 and differing == [progressive]
    assert {type(image) for pair in pairs for image in pair} == {memoryview}


def test_torchs_items_are_those_of_the_jpegs(twins: tuple[Path, Path]) -> None:
    plain, ready = (PackedDataset(folder) for folder in twins)
    for (one, label), (other, same) in zip((plain[i] for i in range(10)), (ready[i] for i in range(10)), strict=True):
        assert one.mode == other.mode == "RGB" and np.array_equal(np.asarray(one), np.asarray(other)) and label == same
    plain.packed.close()
    ready.packed.close()


def set_of(folder: Path, bad: int = -1) -> dict[str, list[bytes]]:
    """Packs three samples with two more fields of records; returns the JPEGs of each field."""
    jpegs = [encoded(photo(200, 160, number), quality=90) for number in range(12)]
    records = [native.to_planes(jpeg) or b"" for jpeg in jpegs]
    samples = []
    for row in range(3):
        image, left, *frames = records[4 * row : 4 * row + 4]
        fields = {"image": image, "left": damaged(left) if row == bad else left, "frames": frames, "boxes": BOXES}
        samples.append(Sample(f"{row}.jpg", fields))
    types = {"image": "bytes", "left": "bytes", "frames": "bytes[]", "boxes": "float32[?,4]"}
    pack_samples(folder, Schema.of(types), samples, num_shards=1)
    return {"left": jpegs[1::4], "frames": [jpegs[row + 2 : row + 4] for row in (0, 4, 8)]}


BOXES = np.array([[10, 20, 60, 70]], np.float32)


def test_other_fields_are_jpegs_for_every_loader(tmp_path: Path) -> None:
    expected = set_of(tmp_path)
    with closing(PackedSamples(tmp_path)) as samples:
        found = batches.make(samples, range(3), 0)
    assert {name: found[name] for name in expected} == expected
    dataset = PackedDataset(tmp_path)
    assert [dataset[row]["left"] for row in range(3)] == expected["left"]
    assert [dataset[row]["frames"] for row in range(3)] == expected["frames"]
    dataset.packed.close()


def test_where_the_core_is_missing_no_loader_begins(twins: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "decodes_jpeg", False)
    with pytest.raises(MissingPackageError, match="reading decode-ready records needs the compiled core's decoder"):
        PackedSamples(twins[1])
    PackedSamples(twins[0]).close()


def test_records_in_other_fields_may_have_to_move(tmp_path: Path) -> None:
    set_of(tmp_path)
    transform = WithTargets(Resize(40), plain=("frames",))
    with closing(PackedSamples(tmp_path, transform)) as samples, pytest.raises(UsageError, match="'left'"):
        batches.make(samples, range(3), 0)


def test_boxes_and_masks_move_with_records_that_exif_turns(tmp_path: Path) -> None:
    mask = encoded(photo(200, 160).convert("L"), "PNG")
    types = {"image": "bytes", "boxes": "float32[?,4]", "mask": "bytes"}
    found = []
    for name in ("plain", "ready"):
        jpegs = [encoded(photo(200, 160, number), exif=turned(number)) for number in range(1, 9)]
        images = jpegs if name == "plain" else [native.to_planes(jpeg) for jpeg in jpegs]
        values = [{"image": image, "boxes": BOXES, "mask": mask} for image in images]
        rows = [Sample(str(number), fields) for number, fields in enumerate(values)]  # type: ignore[arg-type]
        pack_samples(tmp_path / name, Schema.of(types), rows, num_shards=1)
        for upright in (False, True):
            with closing(PackedSamples(tmp_path / name, TRANSFORMS[0], upright=upright)) as samples:
                found.append(batches.make(samples, range(8), 5))
    assert all(len({boxes.tobytes() for boxes in batch["boxes"]}) > 4 for batch in found)
    for plain, ready in zip(found[:2], found[2:], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(plain["boxes"], ready["boxes"], strict=True))
        assert np.array_equal(plain["image"], ready["image"]) and np.array_equal(plain["mask"], ready["mask"])


def test_a_damaged_record_is_named_or_replaced(tmp_path: Path) -> None:
    expected = set_of(tmp_path, bad=1)
    with closing(PackedSamples(tmp_path)) as samples, pytest.raises(CorruptRecordError, match=r"record 1.*'1\.jpg'"):
        batches.make(samples, range(3), 0)
    with closing(PackedSamples(tmp_path, max_skipped=1)) as samples:
        found = batches.make(samples, range(3), 0)
    left = expected["left"]
    assert found["left"] == [left[0], left[0], left[2]]
    dataset = PackedDataset(tmp_path)
    with pytest.raises(CorruptRecordError, match=r"record 1.*'1\.jpg'.*decode-ready record: CRC-32C"):
        dataset[1]
    dataset.packed.close()


def test_a_damaged_image_is_named_and_never_decoded(tmp_path: Path) -> None:
    record = native.to_planes(encoded(photo(200, 160), quality=90)) or b""
    samples_of = [Sample("good", {"image": record}), Sample("bad", {"image": damaged(record)})]
    pack_samples(tmp_path, Schema.of({"image": "bytes"}), samples_of, num_shards=1)
    for transform in (Resize(40), None):
        with closing(PackedSamples(tmp_path, transform)) as samples, pytest.raises(CorruptRecordError, match="'bad'"):
            batches.make(samples, range(2), 0)
    with closing(PackedSamples(tmp_path, Resize(40), max_skipped=1)) as samples:
        images = batches.make(samples, range(2), 0)["image"]
    assert np.array_equal(images[0], images[1])
