"""Transforms: windows within their images, torchvision's distribution, and nothing but plain data."""

from __future__ import annotations

import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import UsageError
from dlio.images import CenterCrop, Pad, RandomCrop, RandomResizedCrop, Resize, Transform, Windows
from tests.helpers.lazy import Lazy
from tests.helpers.transforms import TRANSFORMS, keys

scipy_stats = Lazy("scipy.stats")

SIZES = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=20)


@given(
    sizes=SIZES,
    transform=st.sampled_from([*TRANSFORMS, RandomCrop(24, 30), Pad(Resize(4), 2)]),
    seed=st.integers(0, 99),
)
def test_windows_lie_within_their_images(sizes: list[tuple[int, int]], transform: Transform, seed: int) -> None:
    array = np.array(sizes)
    windows = transform.plan(array, keys(len(sizes), seed))
    left, top, width, height = windows.boxes.T
    assert windows.boxes.dtype == np.int32 and windows.flips.dtype == np.bool_
    assert (windows.boxes[:, 2:] >= 1).all() and (windows.boxes[:, :2] >= 0).all()
    assert (left + width <= array[:, 1]).all() and (top + height <= array[:, 0]).all()
    if windows.places is not None:
        left, top, place_width, place_height = windows.places.T
        assert windows.places.dtype == np.int32 and (windows.places >= 0).all()
        assert (left + place_width <= transform.output_size[1]).all()
        assert (top + place_height <= transform.output_size[0]).all()
    if windows.parts is not None:
        left, top, part_width, part_height = windows.parts.T
        assert (windows.parts >= 0).all() and (windows.parts[:, 2:] > 0).all()
        assert (left + part_width <= width).all() and (top + part_height <= height).all()


@given(sizes=SIZES, seed=st.integers(0, 99))
def test_a_window_depends_on_its_own_key_and_size_only(sizes: list[tuple[int, int]], seed: int) -> None:
    transform = RandomResizedCrop(224, flip=True)
    together = transform.plan(np.array(sizes), keys(len(sizes), seed))
    for row, size in enumerate(sizes):
        alone = transform.plan(np.array([size]), keys(len(sizes), seed)[row : row + 1])
        assert alone.boxes.tolist() == together.boxes[row : row + 1].tolist()
        assert alone.flips.tolist() == together.flips[row : row + 1].tolist()


def torchvision_box(height: int, width: int, chance: random.Random) -> tuple[int, int, int, int]:
    """Draws as torchvision.transforms.RandomResizedCrop.get_params does: left, top, width, height."""
    for _ in range(10):
        area = height * width * chance.uniform(0.08, 1.0)
        ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return chance.randint(0, width - w), chance.randint(0, height - h), w, h
    w = height * 4 / 3 if width / height > 4 / 3 else width
    h = width / (3 / 4) if width / height < 3 / 4 else height
    return (width - round(w)) // 2, (height - round(h)) // 2, round(w), round(h)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (333, 1000), (200, 64)])
def test_random_boxes_are_distributed_as_torchvisions(height: int, width: int) -> None:
    count = 20_000
    chance = random.Random(1)
    theirs = np.array([torchvision_box(height, width, chance) for _ in range(count)])
    windows = RandomResizedCrop(224, flip=True).plan(np.tile([[height, width]], (count, 1)), keys(count, 5))
    for column in range(4):
        assert scipy_stats.ks_2samp(windows.boxes[:, column], theirs[:, column]).pvalue > 1e-4
    assert abs(windows.flips.mean() - 0.5) < 0.02


def test_an_image_that_no_try_fits_gives_its_centre() -> None:
    sizes = np.array([[10, 4000], [4000, 10], [1, 1], [1, 5000]])
    boxes = RandomResizedCrop(8).plan(sizes, keys(4)).boxes
    assert boxes.tolist() == [[1993, 0, 13, 10], [0, 1993, 10, 13], [0, 0, 1, 1], [2499, 0, 1, 1]]


def test_center_crop_takes_what_torchvision_takes() -> None:
    windows = CenterCrop(224).plan(np.array([[256, 256], [512, 768], [300, 300]]), keys(3))
    assert windows.parts is not None
    inner = windows.parts + np.pad(windows.boxes[:, :2], [(0, 0), (0, 2)])
    assert inner.tolist() == [[16, 16, 224, 224], [160, 32, 448, 448], [18.75, 18.75, 262.5, 262.5]]
    windows = CenterCrop(224, resize=224).plan(np.array([[100, 300]]), keys(1))
    assert windows.boxes.tolist() == [[99, 0, 102, 100]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop((4, -1)),
        lambda: RandomResizedCrop(4, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(4, ratio=(0, 1)),
        lambda: CenterCrop(0),
        lambda: CenterCrop(10, resize=9),
        lambda: CenterCrop((4, 10), resize=9),
        lambda: CenterCrop((4, 10), resize=(9, 9)),
        lambda: CenterCrop((4, 10), resize=(9, 10, 11)),
        lambda: Resize(8, interpolation="lanczos"),
        lambda: Resize(0),
    ],
)
def test_impossible_transforms_are_refused(make: object) -> None:
    with pytest.raises(UsageError, match="expected"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Resize("a"), "size='a'"),
        (lambda: Resize(2.5), "size=2.5"),
        (lambda: Resize((1, 2, 3)), r"size=\(1, 2, 3\)"),
        (lambda: Resize(None), "size=None"),
        (lambda: CenterCrop((8, 0)), r"size=\(8, 0\)"),
        (lambda: RandomResizedCrop(8, interpolation="area"), "interpolation='area'"),
        (lambda: CenterCrop(8, resize="9"), "resize='9'"),
        (lambda: RandomResizedCrop(True), "size=True"),
        (lambda: RandomResizedCrop(8, scale=0.5), "scale=0.5"),
        (lambda: RandomResizedCrop(8, scale=("a", "b")), r"scale=\('a', 'b'\)"),
        (lambda: RandomResizedCrop(8, ratio=(1, float("nan"))), "ratio="),
    ],
)
def test_values_of_another_kind_are_named(make: object, named: str) -> None:
    with pytest.raises(UsageError, match=f"{named}.*: expected"):
        make()  # type: ignore[operator]


def test_numpys_numbers_are_sizes_too() -> None:
    assert Resize(np.int64(8)).output_size == Resize([8, 8]).output_size == (8, 8)  # type: ignore[arg-type]


def test_transforms_are_plain_data() -> None:
    for transform in TRANSFORMS:
        assert isinstance(transform, Transform)
        assert pickle.loads(pickle.dumps(transform)) == transform
        assert isinstance(transform.plan(np.empty((0, 2), dtype=np.int64), keys(0)), Windows)
