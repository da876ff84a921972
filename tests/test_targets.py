"""Boxes and masks move as their image does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, UsageError
from dlio.images import CenterCrop, RandomResizedCrop, Resize, Windows
from dlio.loaders import batches
from dlio.loaders.dataset import PackedSamples
from dlio.targets import WithTargets, move_boxes
from tests.helpers.images import encoded
from tests.loaders.packing import pack_samples

TYPES = {"image": "bytes", "mask": "bytes", "boxes": "float32[?,4]", "labels": "int64[]", "areas": "float32[]"}


def squares(number: int) -> Sample:
    """Returns a black image with two white squares, their mask, and their boxes."""
    pixels = np.zeros((60, 80), "uint8")
    boxes = np.array([[4 + number, 6, 24 + number, 26], [50, 30, 70, 50]], "float32")
    for label, (left, top, right, bottom) in enumerate(boxes.astype(int).tolist(), start=1):
        pixels[top:bottom, left:right] = label
    shown = encoded(Image.fromarray(np.where(pixels, 255, 0).astype("uint8"), "L").convert("RGB"), "PNG")
    fields = {"image": shown, "mask": encoded(Image.fromarray(pixels, "L"), "PNG"), "boxes": boxes}
    return Sample(str(number), fields | {"labels": np.array([1, 2]), "areas": np.array([400, 400], "float32")})


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    root = tmp_path_factory.mktemp("packed")
    pack_samples(root, Schema.of(TYPES), [squares(number) for number in range(16)], num_shards=1)
    return root


@pytest.mark.parametrize(
    "transform", [RandomResizedCrop(64, flip=True, scale=(0.3, 1)), CenterCrop(40), Resize((30, 80))]
)
def test_boxes_and_masks_stay_on_what_they_mark(packed, transform):
    moving = WithTargets(transform, masks=("mask",), visible=0.0)
    samples = PackedSamples(packed, moving)
    made = batches.make(samples, range(16), 7)
    again = batches.make(samples, range(16), 7)
    plain = batches.make(PackedSamples(packed, transform), range(16), 7)
    samples.close()
    assert np.array_equal(made["image"], plain["image"])
    assert all(np.array_equal(one, two) for one, two in zip(made["boxes"], again["boxes"], strict=True))
    for row in range(16):
        mask, bright = made["mask"][row], made["image"][row, 0] > 127
        assert mask.shape == bright.shape == transform.output_size
        assert ((mask > 0) == bright).mean() > 0.93  # but for the edges, which the image mixes
        boxes, labels = made["boxes"][row], made["labels"][row]
        assert len(boxes) == len(labels) == len(made["areas"][row])
        for box, label in zip(boxes, labels.tolist(), strict=True):
            rows, columns = np.nonzero(mask == label)
            if len(rows):
                found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
                assert np.abs(box - found).max() <= 2.5
        assert set(np.unique(mask)) - {0} <= set(labels.tolist())


def test_a_box_of_which_little_is_left_is_dropped_with_its_entries():
    windows = Windows(np.array([[10, 0, 20, 20]], "int32"), np.array([True]))
    boxes = [[0, 0, 12, 10], [10, 0, 30, 20], [15, 5, 20, 10], [40, 0, 50, 5]]
    moved, kept, shares = move_boxes(boxes, windows, 0, (40, 40), visible=0.5)
    assert kept.tolist() == [1, 2]
    assert moved.tolist() == [[0, 0, 40, 40], [20, 10, 30, 20]]
    assert shares.tolist() == [4, 4]
    assert move_boxes(np.empty((0, 4)), windows, 0, (40, 40))[0].shape == (0, 4)


def test_parts_of_windows_between_pixels_count():
    windows = Windows(np.array([[10, 0, 20, 20]], "int32"), np.array([False]), np.array([[0.5, 1.0, 10.0, 10.0]]))
    assert move_boxes([[10.5, 1, 20.5, 11]], windows, 0, (10, 10))[0].tolist() == [[0, 0, 10, 10]]


@pytest.mark.parametrize(
    "mask",
    [b"no image", encoded(Image.new("RGB", (80, 60)), "PNG"), encoded(Image.new("L", (8, 6)), "PNG")],
    ids=["no image", "colours", "small"],
)
def test_a_mask_that_does_not_fit_its_image_is_named(tmp_path, mask):
    sample = squares(0)
    pack_samples(tmp_path, Schema.of(TYPES), [Sample("x", sample.fields | {"mask": mask})], num_shards=1)
    samples = PackedSamples(tmp_path, WithTargets(Resize(8), masks=("mask",)))
    with pytest.raises(CorruptRecordError, match="sample 'x': its targets cannot be moved"):
        batches.make(samples, [0], 0)
    samples.close()


@dataclass
class NoTransform:
    size: int = 3


@pytest.mark.parametrize("wrong", [{"transform": Resize}, {"transform": NoTransform()}, {"visible": 2}])
def test_what_cannot_be_carried_out_is_refused(wrong):
    with pytest.raises(UsageError):
        WithTargets(**{"transform": Resize(8)} | wrong)


def test_arrays_of_another_meaning_keep_their_entries_where_as_many_boxes_are(tmp_path):
    others = {"size": np.array([60, 80]), "difficult": np.array([True, False]), "notes": np.array([3, 4])}
    types = TYPES | {"size": "int64[2]", "difficult": "bool[2]", "notes": "int64[]"}
    pack_samples(tmp_path, Schema.of(types), [Sample("x", squares(0).fields | others)], num_shards=1)
    samples = PackedSamples(tmp_path, WithTargets(CenterCrop(20), visible=1))
    made = batches.make(samples, [0], 0)
    samples.close()
    assert len(made["boxes"][0]) == len(made["labels"][0]) < 2
    assert all(np.array_equal(made[name][0], value) for name, value in others.items())
