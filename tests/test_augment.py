"""The operations of AutoAugment and its kin: Pillow's bytes, torchvision's magnitudes, and targets that move."""

from __future__ import annotations

import math
import pickle
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from dlio import native
from dlio.codecs import decoders
from dlio.errors import UsageError
from dlio.images import (
    AutoAugment,
    RandAugment,
    RandomQuarterTurns,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    TrivialAugmentWide,
    composed,
)
from dlio.images.augment import magnitudes
from dlio.images.boxes import move_boxes
from dlio.images.composed import moves_of
from dlio.images.operations import carry_out, joined, step_of
from tests.helpers.images import encoded
from tests.helpers.lazy import Lazy
from tests.helpers.transforms import keys

torch = Lazy("torch")
SIZES = [(1, 1), (2, 3), (3, 3), (1, 7), (5, 1), (17, 21), (33, 32), (24, 24)]
WIDE = {
    "ShearX": 0.99, "ShearY": 0.99, "TranslateX": 32, "TranslateY": 32, "Rotate": 135,
    "Brightness": 0.99, "Color": 0.99, "Contrast": 0.99, "Sharpness": 0.99,
}  # fmt: skip
OPERATIONS = ["Identity", *WIDE, "Posterize", "Solarize", "AutoContrast", "Equalize"]
MOVES = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]
RESAMPLING = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR}


def space(name: str) -> list[float]:
    """Returns the magnitudes of TrivialAugmentWide._augmentation_space of torchvision 0.28."""
    if name == "Posterize":
        return (8 - (torch.arange(31) / (30 / 6)).round().int()).tolist()
    if name == "Solarize":
        return torch.linspace(255.0, 0.0, 31).tolist()
    return torch.linspace(0.0, WIDE[name], 31).tolist() if name in WIDE else [0.0]


def inverse_affine(centre: tuple[float, float], move: tuple[int, int], shear: tuple[float, float]) -> list[float]:
    """Returns _get_inverse_affine_matrix of torchvision 0.28 for an angle of 0 and a scale of 1."""
    sx, sy = map(math.radians, shear)
    a = math.cos(-sy) / math.cos(sy)
    b = -math.cos(-sy) * math.tan(sx) / math.cos(sy)
    c = math.sin(-sy) / math.cos(sy)
    d = -math.sin(-sy) * math.tan(sx) / math.cos(sy) + 1.0
    x, y = centre[0] + move[0], centre[1] + move[1]
    return [d, -b, d * -x + -b * -y + centre[0], -c, a, -c * -x + a * -y + centre[1]]


def apply_op(image: Image.Image, name: str, magnitude: float, interpolation: str, fill: int) -> Image.Image:
    """Returns what _apply_op of torchvision 0.28 makes of a PIL image."""
    resample, colour = RESAMPLING[interpolation], (fill,) * len(image.getbands()) if image.mode == "RGB" else fill
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return getattr(ImageEnhance, name)(image).enhance(1.0 + magnitude)
    if name == "Rotate":
        return image.rotate(magnitude, resample, fillcolor=colour)
    if name in MOVES:
        degrees = math.degrees(math.atan(magnitude))
        centre = (0.0, 0.0) if name.startswith("Shear") else (image.width * 0.5, image.height * 0.5)
        move = {"TranslateX": (int(magnitude), 0), "TranslateY": (0, int(magnitude))}.get(name, (0, 0))
        shear = {"ShearX": (degrees, 0.0), "ShearY": (0.0, degrees)}.get(name, (0.0, 0.0))
        matrix = inverse_affine(centre, move, shear)
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=colour)
    if name == "Posterize":
        return ImageOps.posterize(image, int(magnitude))
    if name == "Solarize":
        return ImageOps.solarize(image, magnitude)  # type: ignore[arg-type]
    others = {"AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize, "Invert": ImageOps.invert}
    return others.get(name, lambda same: same)(image)


def pictures(height: int, width: int) -> dict[str, Image.Image]:
    """Returns noise, a narrow range of tones, one tone, and grey."""
    chance = np.random.default_rng(height * 100 + width)
    noise = chance.integers(0, 256, (height, width, 3), np.uint8)
    arrays = {"noise": noise, "narrow": 40 + noise // 16, "flat": np.full_like(noise, 77), "grey": noise[..., 0]}
    return {name: Image.fromarray(array) for name, array in arrays.items()}


def of_layout(pixels: np.ndarray, *, planar: bool) -> np.ndarray:
    """Returns a batch (n, height, width, 3) in memory of a layout."""
    return pixels.transpose(0, 3, 1, 2).copy("C").transpose(0, 2, 3, 1) if planar else pixels.copy("C")


@pytest.mark.parametrize("name", [*OPERATIONS, "Invert"])
def test_every_operation_is_pillows_byte_for_byte(name: str) -> None:
    """All magnitudes and signs, odd sizes, grey and RGB, both layouts, both interpolations."""
    signs = (1, -1) if name in WIDE else (1,)
    ways = [("nearest", 0), ("bilinear", 9)] if name in MOVES else [("nearest", 0)]
    for height, width in SIZES:
        images = pictures(height, width)
        batch = np.stack([np.asarray(image.convert("RGB")) for image in images.values()])
        for magnitude in (sign * each for each in space(name) for sign in signs):
            for interpolation, fill in ways:
                changed = [apply_op(image, name, magnitude, interpolation, fill) for image in images.values()]
                expected = np.stack([np.asarray(image.convert("RGB")) for image in changed])
                step = step_of(name, magnitude, (height, width), interpolation, fill)
                for planar in (False, True):
                    found = of_layout(batch, planar=planar)
                    carry_out(found, joined([[step]] * len(batch), 1))
                    assert np.array_equal(found, expected), (height, width, magnitude, interpolation, planar)


def test_magnitudes_are_torchvisions() -> None:
    for name in OPERATIONS:
        assert list(magnitudes(name, 31, 6 if name == "Posterize" else WIDE.get(name, 0)))[: len(space(name))] == space(
            name
        )
    shift = 150.0 / 331.0 * 224
    assert list(magnitudes("TranslateX", 10, shift)) == torch.linspace(0.0, shift, 10).tolist()
    assert [round(bits) for bits in magnitudes("Posterize", 10, 4)] == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4]


@pytest.mark.parametrize("effect", [TrivialAugmentWide(), RandAugment(3, 12), AutoAugment(), RandomQuarterTurns()])
def test_without_the_core_the_bytes_are_the_same(effect, monkeypatch: pytest.MonkeyPatch) -> None:
    before = np.random.default_rng(3).integers(0, 256, (60, 16, 16, 3), np.uint8)
    by_core, by_pillow = before.copy(), of_layout(before, planar=True)
    effect.change(by_core, keys(60))
    monkeypatch.setattr(native, "available", False)
    effect.change(by_pillow, keys(60))
    assert np.array_equal(by_core, by_pillow) and not np.array_equal(by_core, before)
    assert pickle.loads(pickle.dumps(effect)) == effect


def test_trivial_augment_draws_each_operation_and_magnitude_evenly() -> None:
    effect, count = TrivialAugmentWide(), 14 * 31 * 40
    steps = effect.steps((224, 224), keys(count))
    # three moves of the image's axes and the identity share the core's operations
    shares = {code: n / count * 14 for code, n in Counter(steps.operations[:, 0].tolist()).items()}
    assert sorted(shares) == [*range(9), 10]
    assert all(abs(shares[code] - 1) < 0.15 for code in range(8))
    assert abs(shares[8] - (5 - 1 / 31)) < 0.2 and abs(shares[10] - (1 + 1 / 31)) < 0.15  # a rotation by 0 is nothing
    factors = Counter(steps.numbers[steps.operations[:, 0] == 0, 0, 0].tolist())
    assert len(factors) == 61 and min(factors) == pytest.approx(0.01) and max(factors) == pytest.approx(1.99)


def test_rand_augment_and_auto_augment_are_their_operations_in_turn() -> None:
    size, count = (24, 24), 200
    before = np.random.default_rng(4).integers(0, 256, (count, *size, 3), np.uint8)
    for effect in (RandAugment(2, 9), AutoAugment()):
        found = before.copy()
        effect.change(found, keys(count))
        steps = effect.steps(size, keys(count))
        once = before.copy()
        for number in range(2):
            carry_out(once, type(steps)(steps.operations[:, [number]], steps.numbers[:, [number]]))
        assert np.array_equal(found, once)
    codes = Counter(AutoAugment().steps(size, keys(20_000)).operations.ravel().tolist())
    assert codes[7] / 20_000 == pytest.approx(0.448, abs=0.02)  # Equalize: the shares of ImageNet's policy, summed
    assert 0 not in codes and codes[9] == 0


def test_equal_keys_give_equal_images_and_effects_draw_apart() -> None:
    picture = encoded(pictures(40, 50)["noise"], "PNG")
    transform = composed([RandomResizedCrop(16), TrivialAugmentWide(), TrivialAugmentWide()])
    out = np.zeros((2, 50, 16, 16, 3), np.uint8)
    for row in range(2):
        assert decoders.decode_batch([picture] * 50, transform, keys(50), out[row]) == {}
    assert np.array_equal(out[0], out[1])
    pairs = [tuple(moves) for moves in moves_of(transform, keys(500)) if len(moves) == 2]
    assert len(pairs) > 30 and sum(first == second for first, second in pairs) < 5


@pytest.mark.parametrize(
    "effect", [RandomVerticalFlip(), RandomQuarterTurns(), TrivialAugmentWide(), RandAugment(2, 20), AutoAugment()]
)
def test_boxes_and_masks_move_with_the_effect(effect) -> None:
    """A box of marked pixels: the mask moves as the image does, and the box encloses what is left of it."""
    pixels = np.zeros((40, 40), np.uint8)
    pixels[8:20, 12:30] = 1
    mask, transform = encoded(Image.fromarray(pixels), "PNG"), composed([Resize(40), effect])
    sizes, count = np.full((120, 2), 40), 120
    windows = transform.plan(sizes, keys(count))
    windows = type(windows)(windows.boxes, windows.flips, moves=moves_of(transform, keys(count)))
    shown = np.zeros((count, 40, 40, 3), np.uint8)
    decoders.decode_batch(
        [encoded(Image.fromarray(pixels * 255).convert("RGB"), "PNG")] * count, transform, keys(count), shown
    )
    moved = 0
    for row in range(count):
        found = decoders.decode_mask(mask, sizes[row], windows, row, (40, 40))
        boxes, remain, shares = move_boxes([[12, 8, 30, 20]], windows, row, (40, 40))
        if not windows.moves[row]:
            assert boxes[0].tolist() == [12, 8, 30, 20] and shares[0] == 1
            continue
        moved += 1
        assert found.dtype == np.int32 and set(np.unique(found)) <= {0, 1}
        rows, columns = np.nonzero(found)
        if len(rows):
            edges = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (boxes[0, :2] <= edges[:2] + 1.5).all() and (boxes[0, 2:] >= edges[2:] - 1.5).all() and remain[0]
            if (edges % 40).all() and len(windows.moves[row]) == 1:  # nothing is cut off
                assert np.abs(boxes[0] - edges).max() <= 1.5 and abs(shares[0] * 216 - len(rows)) < 30
    assert moved > 10
    if isinstance(effect, RandomVerticalFlip | RandomQuarterTurns):
        assert np.array_equal(shown[..., 0] > 0, np.stack(
            [decoders.decode_mask(mask, sizes[row], windows, row, (40, 40)) > 0 for row in range(count)]
        ))  # fmt: skip


def test_quarter_turns_and_vertical_flips_are_pillows() -> None:
    before = np.random.default_rng(5).integers(0, 256, (80, 9, 9, 3), np.uint8)
    turned, flipped = before.copy(), before.copy()
    RandomQuarterTurns().change(turned, keys(80))
    RandomVerticalFlip().change(flipped, keys(80))
    ways = [np.rot90(before, number, (1, 2)) for number in range(4)]
    chosen = [[np.array_equal(turned[row], way[row]) for way in ways].index(True) for row in range(80)]
    assert min(Counter(chosen).values()) > 8 and len(set(chosen)) == 4
    upside_down = [np.array_equal(flipped[row], before[row, ::-1]) for row in range(80)]
    assert 25 < sum(upside_down) < 55
    assert all(one or np.array_equal(flipped[row], before[row]) for row, one in enumerate(upside_down))


def test_results_that_are_not_square_cannot_be_turned() -> None:
    with pytest.raises(UsageError, match="20 x 30 pixels, expected square"):
        composed([Resize((20, 30)), RandomQuarterTurns()])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TrivialAugmentWide(1),
        lambda: TrivialAugmentWide(interpolation="bicubic"),
        lambda: TrivialAugmentWide(fill=256),
        lambda: RandAugment(0),
        lambda: RandAugment(magnitude=31),
        lambda: RandAugment(magnitude=-1),
        lambda: AutoAugment("linear"),
        lambda: RandomVerticalFlip(1.5),
    ],
)
def test_what_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(UsageError, match="expected"):
        wrong()


def test_the_core_refuses_what_it_cannot_carry_out() -> None:
    images, steps, numbers = np.zeros((2, 4, 5, 3), np.uint8), np.zeros((2, 1), np.uint8), np.zeros((2, 1, 9))
    for pixels in (images[:, ::2], images[:, :, :, :2], images[:1]):
        with pytest.raises(ValueError, match="expected"):
            native.augment(pixels, steps, numbers)
    for step, number in ((11, 0.0), (0, math.nan), (4, 9.0), (8, 256.0), (8, 1e10), (3, math.inf)):
        with pytest.raises(ValueError, match="no possible operation"):
            native.augment(images, steps + np.uint8(step), np.full((2, 1, 9), number))
    with pytest.raises(TypeError):
        native.augment(images, steps, numbers.astype(np.float32))
    native.augment(images[:0], steps[:0], numbers[:0])
    for far in (1e9, -1e9):  # maps that no fixed point number reaches
        native.augment(images, steps + np.uint8(8), np.array([[[far] * 6 + [7.0] * 3]] * 2))
        assert (images == 7).all()
