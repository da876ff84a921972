"""Padding, crops and effects: torchvision's definitions on PIL images, which are written out here, from equal keys."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from dlio import native
from dlio.codecs import decoders
from dlio.errors import UsageError
from dlio.images import ColorJitter, Grayscale, Pad, RandomCrop, RandomErasing, RandomResizedCrop, Resize, composed
from dlio.random_keys import uniform
from dlio.targets import WithTargets, move_boxes
from tests.helpers.images import encoded, photo
from tests.helpers.transforms import keys

COUNT = 40
SIZES = [(32, 32), (40, 33), (5, 60), (1, 1), (90, 7)]
LAYOUTS = {"channels last": (0, 1, 2, 3), "channels first": (0, 3, 1, 2)}


def images(height: int = 21, width: int = 17, layout: str = "channels last") -> np.ndarray:
    """Returns images as decoders hand them to effects: (n, height, width, 3) in memory of a layout."""
    pixels = np.random.default_rng(3).integers(0, 256, (COUNT, height, width, 3), np.uint8)
    order = LAYOUTS[layout]
    return np.ascontiguousarray(pixels.transpose(order)).transpose(np.argsort(order))


def decode(picture: Any, transform: Any, out: np.ndarray | None = None) -> np.ndarray:
    """Returns COUNT results of one picture."""
    transform = composed(transform)
    out = np.full((COUNT, 3, *transform.output_size), 7, np.uint8) if out is None else out
    assert decoders.decode_batch([picture] * COUNT, transform, keys(COUNT), out) == {}
    return out.transpose(0, 2, 3, 1) if out.shape[1] == 3 else out


@pytest.mark.parametrize("with_core", [True, False])
@pytest.mark.parametrize("padding", [0, 4, 40])
def test_random_crop_takes_what_torchvision_takes_of_a_padded_image(
    padding: int, with_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "available", with_core)
    size, fill = (32, 24), (9, 8, 7)
    numbers = uniform(keys(COUNT), 3)
    for width, height in SIZES:
        image = photo(width, height)
        found = decode(encoded(image, "PNG"), RandomCrop(size, padding, flip=True, fill=fill))
        padded = ImageOps.expand(image, padding, fill)
        lacking = max(size[1] - padded.width, 0), max(size[0] - padded.height, 0)
        padded = ImageOps.expand(padded, lacking * 2, fill)
        for row in range(COUNT):
            top = int(numbers[row, 0] * (padded.height - size[0] + 1))
            left = int(numbers[row, 1] * (padded.width - size[1] + 1))
            expected = np.asarray(padded.crop((left, top, left + size[1], top + size[0])))
            assert (found[row] == expected[:, :: -1 if numbers[row, 2] < 0.5 else 1]).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
def test_layouts_and_pixels_agree_where_windows_have_places(kind: str) -> None:
    picture = encoded(photo(20, 18), kind)
    window = Pad(RandomCrop(16, padding=4, flip=True, fill=200), 3, fill=200)
    transform = [window, ColorJitter(0.5, 0.5, 0.5), Grayscale(0.3)]
    first = decode(picture, transform)
    assert (decode(picture, transform, np.empty((COUNT, 22, 22, 3), np.uint8)) == first).all()
    pixels = np.asarray(decoders.decode_rgb(picture))
    assert (decode(pixels, transform) == first).all()
    plain = decode(picture, Pad(Resize((18, 20)), 3, fill=200))
    assert (plain == np.asarray(ImageOps.expand(decoders.decode_rgb(picture), 3, (200,) * 3))).all()


def test_images_three_pixels_wide_are_no_other_layout() -> None:
    picture = encoded(photo(9, 8), "PNG")
    transform = [Pad(Resize((5, 1)), 1), ColorJitter(0, 0, 3)]
    assert (decode(picture, transform) == decode(picture, transform, np.empty((COUNT, 7, 3, 3), np.uint8))).all()


@pytest.mark.parametrize("with_core", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_color_jitter_is_torchvisions(layout: str, with_core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions on PIL images, factors and order of the steps from the keys."""
    monkeypatch.setattr(native, "available", with_core)
    found = images(layout=layout)
    before, numbers = found.copy(), uniform(keys(COUNT), 6)
    ColorJitter(0.4, (0.2, 3), 1.5).change(found, keys(COUNT))
    enhance = ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color
    bounds = (0.6, 1.4), (0.2, 3), (0, 2.5)
    for row in range(COUNT):
        image = Image.fromarray(before[row])
        for step in np.argsort(numbers[row, 3:]):
            low, high = bounds[step]
            image = enhance[step](image).enhance(low + (high - low) * numbers[row, step])
        assert (found[row] == np.asarray(image)).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 65), (64, 1), (3, 3), (64, 64)])
def test_grey_is_pillows_at_any_size(height: int, width: int, layout: str) -> None:
    found = images(height, width, layout)
    expected = [Image.fromarray(image).convert("L").convert("RGB") for image in found]
    Grayscale().change(found, keys(COUNT))
    assert (found == np.stack(expected)).all()


def test_a_share_of_images_becomes_grey() -> None:
    found, before = images(), images()
    Grayscale(0.3).change(found, keys(COUNT))
    changed = (found != before).any(axis=(1, 2, 3))
    assert (changed == (uniform(keys(COUNT), 1)[:, 0] < 0.3)).all() and 0 < changed.sum() < COUNT


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_erasing_is_torchvisions(layout: str) -> None:
    """get_params of torchvision.transforms.RandomErasing, with the keys' numbers; boxes too large are drawn again."""
    found, effect = images(40, 30, layout), RandomErasing(0.7, (0.3, 0.99), (0.3, 3.3), (1, 2, 3))
    before, numbers = found.copy(), uniform(keys(COUNT), 23)
    effect.change(found, keys(COUNT))
    tried = 0
    for row in range(COUNT):
        expected = before[row].copy()
        for number in range(10 if numbers[row, 22] < 0.7 else 0):
            area = 40 * 30 * (0.3 + (0.99 - 0.3) * numbers[row, 2 * number])
            low, high = math.log(0.3), math.log(3.3)
            ratio = math.exp(low + (high - low) * numbers[row, 2 * number + 1])
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height < 40 and width < 30:
                top, left = int(numbers[row, 20] * (41 - height)), int(numbers[row, 21] * (31 - width))
                expected[top : top + height, left : left + width] = (1, 2, 3)
                break
            tried += 1
        assert (found[row] == expected).all()
    assert tried > 5


def test_an_image_that_no_box_fits_is_not_erased() -> None:
    found = images(1, 30)
    RandomErasing(1).change(found, keys(COUNT))
    assert (found == images(1, 30)).all()


def test_effects_draw_apart_and_follow_one_another() -> None:
    effects = [ColorJitter(0.9), Grayscale(0.5), ColorJitter(0.9)]
    picture = encoded(photo(20, 18), "PNG")
    found = decode(picture, [RandomResizedCrop(8), *effects])
    assert pickle.loads(pickle.dumps(composed([Resize(8), *effects]))) == composed((Resize(8), *effects))
    twice = decode(picture, [RandomResizedCrop(8), ColorJitter(0.9), Grayscale(0), ColorJitter(0.9)])
    grey = (found[..., 0] == found[..., 1]).all(axis=(1, 2))
    assert 0 < grey.sum() < COUNT and (found[~grey] == twice[~grey]).all()
    once = decode(picture, RandomResizedCrop(8)).astype(float).mean(axis=(1, 2, 3))
    factors = twice.astype(float).mean(axis=(1, 2, 3)) / once
    assert len(set(factors.round(2))) > COUNT // 2


def test_boxes_and_masks_move_with_padding() -> None:
    image = Image.new("RGB", (20, 20))
    image.paste((255, 255, 255), (4, 6, 10, 16))
    mask = encoded(image.convert("1").convert("L").point(lambda value: value // 255), "PNG")
    transform = WithTargets([Pad(RandomCrop(18, padding=4, flip=True), 2), RandomErasing(0)])
    found = decode(encoded(image, "PNG"), transform)
    windows = transform.plan(np.full((COUNT, 2), 20), keys(COUNT))
    for row in range(COUNT):
        boxes, _, _ = move_boxes([[4, 6, 10, 16]], windows, row, transform.output_size)
        left, top, right, bottom = boxes[0].astype(int)
        expected = np.zeros((22, 22), bool)
        expected[top:bottom, left:right] = True
        assert (found[row, ..., 0] == expected * 255).all()
        moved = decoders.decode_mask(mask, np.array([20, 20]), windows, row, transform.output_size)
        assert (moved == expected).all()
    assert composed([transform, Grayscale()]).effects == (RandomErasing(0), Grayscale())


def test_numbers_may_be_those_of_numpy() -> None:
    jitter = ColorJitter(np.float32(0.5), np.int64(1), (np.float64(0.5), 1))
    images = np.random.default_rng(1).integers(0, 256, (3, 4, 5, 3), np.uint8)
    same = images.copy()
    jitter.change(images, np.arange(3, dtype=np.uint64))
    ColorJitter(0.5, 1, (0.5, 1)).change(same, np.arange(3, dtype=np.uint64))
    assert np.array_equal(images, same)
    assert Grayscale(np.float32(0.5)) == Grayscale(0.5) and RandomErasing(np.float32(0.5)) == RandomErasing()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: composed([]),
        lambda: composed([Grayscale()]),
        lambda: composed([Resize]),
        lambda: composed([Resize(8), Resize(8)]),
        lambda: composed([Resize(8), Grayscale]),
        lambda: composed([Resize(8), lambda image: image]),
        lambda: RandomCrop(0),
        lambda: RandomCrop(8, padding=-1),
        lambda: RandomCrop(8, padding=1 << 40),
        lambda: RandomCrop(8, fill=256),
        lambda: RandomCrop(8, white=0),
        lambda: Pad(Resize, 2),
        lambda: Pad(Resize(8), 2, fill=(1, 2)),  # type: ignore[arg-type]
        lambda: Pad(RandomCrop(8, fill=255), 2),
        lambda: Pad(Pad(Resize(8), 1, fill=3), 1, fill=7),
        lambda: Pad(composed([Resize(8), Grayscale()]), 2),
        lambda: Pad(WithTargets(Resize(8)), 2),
        lambda: ColorJitter(-0.1),
        lambda: ColorJitter(0, (2, 1)),
        lambda: ColorJitter(0, 0, float("nan")),
        lambda: Grayscale(1.1),
        lambda: RandomErasing(True),
        lambda: Grayscale(np.True_),
        lambda: RandomErasing(0.5, (0, 1)),
        lambda: RandomErasing(0.5, ratio=(2, 1)),
        lambda: RandomErasing(value=-1),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"expected|not a transform|put Pad inside"):
        wrong()


def test_the_core_refuses_places_outside_the_result() -> None:
    good = np.zeros((2, 4, 5, 3), np.uint8)
    out, flips = np.zeros((1, 4, 4, 3), np.uint8), np.zeros(1, bool)
    for place in ([0, 0, 5, 1], [-1, 0, 1, 1], [0, 0, 1, -1], [2**31 - 1, 0, 2**31 - 1, 1]):
        with pytest.raises(ValueError, match="places"):
            native.resize_batch(
                [good[0]], np.array([[0, 0, 1, 1]], np.int32), flips, out, None, np.array([place], np.int32)
            )
