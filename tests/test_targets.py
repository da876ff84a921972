"""Boxes and masks move as their image does."""

from __future__ import annotations

import io
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
    samples = PackedSamples(packed, transform)
    made = batches.make(samples, range(16), 7)
    again = batches.make(samples, range(16), 7)
    still = WithTargets(transform, plain=("mask", "boxes", "areas"))
    plain = batches.make(PackedSamples(packed, still), range(16), 7)
    assert plain["boxes"][0].tolist() == squares(0).fields["boxes"].tolist() and len(plain["labels"][0]) == 2
    samples.close()
    assert np.array_equal(made["image"], plain["image"])
    assert all(np.array_equal(one, two) for one, two in zip(made["boxes"], again["boxes"], strict=True))
    for row in range(16):
        mask, bright = made["mask"][row], made["image"][row, 0] > 127
        assert mask.shape == bright.shape == transform.output_size
        assert ((mask > 0) == bright).mean() > 0.93  # except for the edges, which the image mixes
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
    assert kept.tolist() == [False, True, True, False]
    assert moved[kept].tolist() == [[0, 0, 40, 40], [20, 10, 30, 20]]
    assert shares[kept].tolist() == [4, 4]
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
    samples = PackedSamples(tmp_path, Resize(8))
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


def test_a_box_with_a_side_below_a_pixel_goes_as_in_torchvision():
    """torchvision 0.28 on 200 windows of 200 boxes each: ClampBoundingBoxes and SanitizeBoundingBoxes keep the same."""
    windows = Windows(np.array([[10, 10, 40, 40]], "int32"), np.array([False]))
    boxes = [[0, 0, 12, 12], [0, 0, 11.9, 20], [48.1, 20, 90, 30], [48, 20, 90, 30], [20, 20, 20, 20], [0, 0, 10, 60]]
    moved, remain, _ = move_boxes(boxes, windows, 0, (20, 20))
    assert remain.tolist() == [True, False, False, True, False, False]
    assert moved[remain].tolist() == [[0, 0, 1, 1], [19, 5, 20, 10]]


def pack_one(root, types, fields, key="x"):
    pack_samples(root, Schema.of(TYPES | types), [Sample(key, squares(0).fields | fields)], num_shards=1)


QUESTIONS = {
    "keypoints": ("float32[17,3]", np.zeros((17, 3), "float32"), "no transform here"),
    "landmarks": ("float32[10]", np.zeros(10, "float32"), "no transform here"),
    "bbox": ("float32[?,4]", np.zeros((2, 4), "float32"), "boxes='bbox'"),
    "names": ("str[]", ["a", "b"], "along='names'"),
    "notes": ("int64[]", np.array([3, 4]), "along='notes'"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_field_that_may_move_is_an_error_with_two_ways_out(tmp_path, name):
    kind, value, advice = QUESTIONS[name]
    pack_one(tmp_path, {name: kind}, {name: value})
    with pytest.raises(UsageError) as caught:
        PackedSamples(tmp_path, Resize(8))
    said = str(caught.value)
    assert f"field {name!r} ({kind})" in said and f"plain={name!r}" in said and advice in said
    samples = PackedSamples(tmp_path, WithTargets(CenterCrop(20, 60), plain=name))
    made = batches.make(samples, [0], 0)
    samples.close()
    assert len(made["labels"][0]) < 2 and np.array_equal(made[name][0], value)


def test_a_field_that_is_an_entry_for_each_box_goes_with_its_box(tmp_path):
    pack_one(tmp_path, {"names": "str[]", "ids": "int64[]"}, {"names": ["a", "b"], "ids": np.array([3, 4])})
    samples = PackedSamples(tmp_path, WithTargets(CenterCrop(24, 60), along=("names", "ids")))
    made = batches.make(samples, [0], 0)
    samples.close()
    assert (made["names"], made["ids"][0].tolist(), made["labels"][0].tolist()) == ([["b"]], [4], [2])


def test_bytes_that_hold_an_image_are_an_error_with_two_ways_out(tmp_path):
    pack_one(tmp_path / "depth", {"depth": "bytes"}, {"depth": squares(1).fields["mask"]})
    samples = PackedSamples(tmp_path / "depth", Resize(8))
    with pytest.raises(UsageError, match=r"field 'depth' .*plain='depth'.*masks='depth'"):
        batches.make(samples, [0], 0)
    samples.close()
    samples = PackedSamples(tmp_path / "depth", WithTargets(Resize(8), masks="depth"))
    made = batches.make(samples, [0], 0)
    samples.close()
    assert made["depth"].shape == made["mask"].shape == (1, 8, 8)
    pack_one(tmp_path / "text", {"caption": "bytes", "tags": "str", "score": "float32"},
             {"caption": b"two squares", "tags": "black", "score": 0.5})  # fmt: skip
    samples = PackedSamples(tmp_path / "text", Resize(8))
    assert bytes(batches.make(samples, [0], 0)["caption"][0]) == b"two squares"
    samples.close()


@pytest.mark.parametrize(
    ("boxes", "problem"),
    [
        ([[50, 30, 20, 20], [4, 6, 20, 20]], r"\[50, 30, 20, 20\] is not \(left, top, right, bottom\)"),
        ([[4, 6, 24, 26], [70, 30, 90, 50]], "within the image, 80 x 60 pixels"),
        ([[0.1, 0.1, 0.5, 0.5], [0, 0, 1, 1]], "parts of the image's size"),
        ([[4, 6, 24, float("nan")], [4, 6, 20, 20]], "is not"),
        ([[4, 6, 24, 26]], "'labels' has 2 entries for 1 boxes"),
    ],
)
def test_boxes_of_another_convention_are_named_with_their_sample(tmp_path, boxes, problem):
    pack_one(tmp_path, {}, {"boxes": np.array(boxes, "float32")})
    samples = PackedSamples(tmp_path, Resize(8))
    with pytest.raises(CorruptRecordError, match=f"sample 'x': its targets cannot be moved: .*{problem}"):
        batches.make(samples, [0], 0)
    samples.close()


@pytest.mark.parametrize("kind", ["float32[4]", "int64[2,4]"])
def test_a_fixed_number_of_boxes_is_cut_off_and_stays(tmp_path, kind):
    box = np.array([50, 30, 70, 50]) if kind.endswith("[4]") else np.array([[4, 6, 24, 26], [50, 30, 70, 50]])
    fields = {"image": squares(0).fields["image"], "boxes": box.astype(kind.partition("[")[0])}
    pack_samples(tmp_path, Schema.of({"image": "bytes", "boxes": kind}), [Sample("x", fields)], num_shards=1)
    samples = PackedSamples(tmp_path, Resize((30, 20)))
    made = batches.make(samples, [0], 0)["boxes"]
    samples.close()
    assert made.dtype == "float32" and np.array_equal(made[0], box * np.array([0.25, 0.5] * 2))


@pytest.mark.parametrize(
    "wrong",
    [{"boxes": "label"}, {"boxes": "mask"}, {"masks": "areas"}, {"along": "image"}, {"plain": "boxs"}],
)
def test_a_field_that_does_not_fit_its_role_is_refused(packed, wrong):
    with pytest.raises(UsageError, match=next(iter(wrong.values()))):
        PackedSamples(packed, WithTargets(Resize(8), **wrong))


def test_a_damaged_mask_can_be_skipped(tmp_path):
    good, bad = squares(0), Sample("bad", squares(1).fields | {"mask": b"no image"})
    pack_samples(tmp_path, Schema.of(TYPES), [good, bad], num_shards=1)
    samples = PackedSamples(tmp_path, Resize(8), max_skipped=1)
    made = batches.make(samples, [0, 1], 0)
    samples.close()
    assert len(samples.skips) == 1 and np.array_equal(made["mask"][0], made["mask"][1])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_and_masks_turn_with_the_image(tmp_path, orientation):
    fields = squares(3).fields
    shown = Image.open(io.BytesIO(fields["image"]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in ("JPEG", "PNG"):
        turned = fields | {"image": encoded(shown, kind, exif=exif, **({"quality": 100} if kind == "JPEG" else {}))}
        pack_samples(tmp_path / kind, Schema.of(TYPES), [Sample("x", turned)], num_shards=1)
        upright = (60, 80) if orientation < 5 else (80, 60)
        samples = PackedSamples(tmp_path / kind, Resize(upright), upright=True)
        made = batches.make(samples, [0], 0)
        samples.close()
        bright = made["image"][0, 0] > 127
        assert np.array_equal(made["mask"][0] > 0, bright)
        for (left, top, right, bottom), label in zip(made["boxes"][0].astype(int), made["labels"][0], strict=True):
            assert (made["mask"][0][top:bottom, left:right] == label).all()
            assert (made["mask"][0] == label).sum() == 400
