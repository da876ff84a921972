"""Mixup and CutMix: torchvision's definitions, drawn from the samples' keys; what cannot be mixed is an error."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from dlio import native
from dlio.errors import UsageError
from dlio.images import CutMix, Grayscale, Mixup, RandomChoice, Resize, composed
from dlio.images.mixing import Mixing, beta, mix_batch
from dlio.random_keys import uniform
from tests.helpers.lazy import Lazy
from tests.helpers.transforms import keys

scipy_stats = Lazy("scipy.stats")


def batch(count: int = 6, *, planar: bool = False) -> np.ndarray:
    """Returns images (n, 9, 7, 3) in memory of a layout."""
    pixels = np.random.default_rng(1).integers(0, 256, (count, 3, 9, 7), np.uint8)
    return pixels.transpose(0, 2, 3, 1) if planar else pixels.transpose(0, 2, 3, 1).copy("C")


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.9, 1.0, 3.5])
def test_weights_are_of_the_beta_distribution(alpha: float) -> None:
    assert scipy_stats.kstest(beta(keys(20_000), alpha), scipy_stats.beta(alpha, alpha).cdf).pvalue > 1e-4


@pytest.mark.parametrize("with_core", [True, False])
@pytest.mark.parametrize("planar", [False, True])
def test_each_image_is_mixed_with_the_one_before_it(
    planar: bool, with_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "available", with_core)
    images, labels = batch(planar=planar), np.eye(6, 8, dtype=np.float32)
    before, shares = images.copy(), np.array([0.3, 1.0, 0.0, 0.5, 0.75, 0.7])
    boxes = np.array([[0, 0, 0, 0]] * 4 + [[2, 1, 8, 7], [0, 3, 9, 3]], np.int32)
    mix_batch(images, labels, Mixing(shares, boxes))
    for row in range(6):
        mean = shares[row] * before[row] + (1 - shares[row]) * before[row - 1]
        if row == 4:
            mean = before[row].astype(float)
            mean[2:8, 1:7] = before[row - 1][2:8, 1:7]
        assert np.abs(images[row] - mean).max() <= 0.51
        assert labels[row] == pytest.approx(shares[row] * np.eye(8)[row] + (1 - shares[row]) * np.eye(8)[(row - 1) % 6])


@pytest.mark.parametrize("mix", [Mixup(0.2), CutMix(1.0), RandomChoice([Mixup(0.2), CutMix()])])
def test_the_core_and_numpy_mix_to_the_same_bytes(mix, monkeypatch: pytest.MonkeyPatch) -> None:
    by_core, by_numpy, labels = batch(40), batch(40, planar=True), np.eye(40, dtype=np.float32)
    drawn = mix.draw((9, 7), keys(40))
    mix_batch(by_core, labels.copy(), drawn)
    monkeypatch.setattr(native, "available", False)
    mix_batch(by_numpy, labels, drawn)
    assert np.array_equal(by_core, by_numpy) and not np.array_equal(by_core, batch(40))
    assert pickle.loads(pickle.dumps(mix)) == mix


def test_cutmix_boxes_are_torchvisions() -> None:
    """CutMix.make_params of torchvision.transforms.v2, with the keys' numbers."""
    height, width, count = 30, 50, 300
    drawn = CutMix(1.0).draw((height, width), keys(count))
    for row, (row_at, column_at) in enumerate(uniform(keys(count), 2)):
        top, left, bottom, right = drawn.boxes[row].tolist()
        y, x = int(row_at * height), int(column_at * width)
        assert top <= y <= bottom and left <= x <= right
        assert drawn.shares[row] == pytest.approx(1 - (bottom - top) * (right - left) / (height * width))
        if top > 0 and bottom < height:
            assert y - top == bottom - y
    assert drawn.boxes[:, 2].max() <= height and drawn.boxes[:, 3].max() <= width and drawn.boxes.min() >= 0
    assert drawn.shares.min() < 0.2 and drawn.shares.max() > 0.9


def test_one_way_is_chosen_for_each_sample() -> None:
    drawn = RandomChoice([Mixup(0.2), CutMix()]).draw((40, 40), keys(2000))
    has_box = (drawn.boxes[:, 2:] > drawn.boxes[:, :2]).all(axis=1)
    assert 0.4 < has_box.mean() < 0.55
    assert composed([Resize(8), Grayscale(), CutMix()]).mix == CutMix()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Mixup(0),
        lambda: Mixup(float("inf")),
        lambda: CutMix(True),
        lambda: CutMix(num_classes=0),
        lambda: RandomChoice([]),
        lambda: RandomChoice([Mixup, CutMix()]),
        lambda: RandomChoice([Mixup(num_classes=3), CutMix()]),
        lambda: composed([Mixup()]),
        lambda: composed([Resize(8), Mixup(), Grayscale()]),
        lambda: composed([composed([Resize(8), Mixup()]), Grayscale()]),
    ],
)
def test_what_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(UsageError, match="expected"):
        wrong()


def test_the_core_refuses_boxes_and_shares_out_of_range() -> None:
    images, shares, boxes = batch(2), np.ones(2), np.zeros((2, 4), np.int32)
    for wrong in ([0, 0, 10, 7], [-1, 0, 9, 7], [0, 0, 9, 8]):
        with pytest.raises(ValueError, match="within the images"):
            native.mix_images(images, shares, np.array([wrong] * 2, np.int32))
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="0 to 1"):
            native.mix_images(images, shares * share, boxes)
    with pytest.raises(ValueError, match=r"\(n,\)"):
        native.mix_images(images, shares[:1], boxes)
    native.mix_images(images[:0], shares[:0], boxes[:0])
