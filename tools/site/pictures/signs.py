"""Draws the images in the pictures: road signs of eight classes, turned, in any light, of many sizes.

Two lie in the folder twice, and the classes are of unequal size, so that a report has findings
to show. The same files are drawn each time.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Point = tuple[float, float]
_SIDE = 256
_MIDDLE = _SIDE / 2
#: For each class: how many images, corners (0: a disc), the angle of the first corner, fill, edge, and what is on it.
CLASSES: dict[str, tuple[int, int, float, str, str, str]] = {
    "bicycles": (40, 0, 0, "#1858a8", "#f4f4f4", "o-o"),
    "no entry": (70, 0, 0, "#c4161c", "#f4f4f4", "—"),
    "no parking": (90, 0, 0, "#1858a8", "#c4161c", "/"),
    "parking": (150, 4, 45, "#1858a8", "#f4f4f4", "P"),
    "priority": (110, 4, 0, "#f2b90f", "#f4f4f4", ""),
    "speed limit": (200, 0, 0, "#f7f7f7", "#c4161c", "30"),
    "stop": (120, 8, 22.5, "#c4161c", "#f4f4f4", "STOP"),
    "yield": (100, 3, 90, "#f7f7f7", "#c4161c", ""),
}


def draw_all(folder: Path) -> None:
    """Draws all classes, a folder for each, with two copies."""
    chance = random.Random(0)
    for label, (count, *_) in CLASSES.items():
        (folder / label).mkdir(parents=True)
        for number in range(count):
            (folder / label / f"{number:04}.jpg").write_bytes(_photo(label, chance))
    shutil.copy(folder / "stop" / "0007.jpg", folder / "stop" / "0007-copy.jpg")
    shutil.copy(folder / "yield" / "0011.jpg", folder / "priority" / "0110.jpg")


def _photo(label: str, chance: random.Random) -> bytes:
    """Returns one sign before a sky and a wood, as a JPEG."""
    noise = np.random.default_rng(chance.getrandbits(32))
    height, width = chance.randrange(150, 420), chance.randrange(150, 420)
    light, horizon = chance.uniform(0.55, 1.1), int(height * chance.uniform(0.3, 0.8))
    pixels = np.empty((height, width, 3), np.float32)
    pixels[:horizon] = (150, 180, 215) + np.linspace(-30, 30, horizon)[:, None, None]
    pixels[horizon:] = np.array([70, 95, 55]) + noise.normal(0, 14, (height - horizon, width, 1))
    scene = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    side = int(min(height, width) * chance.uniform(0.5, 0.9))
    sign = _sign(label).rotate(chance.gauss(0, 7), Image.Resampling.BICUBIC).resize((side, side))
    left, top = chance.randrange(width - side), chance.randrange(height - side)
    post = [left + side // 2 - side // 30, top + side // 2, left + side // 2 + side // 30, height]
    ImageDraw.Draw(scene).rectangle(post, fill="#8b8f94")
    scene.paste(sign, (left, top), sign)
    lit = np.asarray(scene) * light + noise.normal(0, 2, (height, width, 3))
    encoded = BytesIO()
    Image.fromarray(np.clip(lit, 0, 255).astype(np.uint8)).save(encoded, "JPEG", quality=chance.randrange(70, 96))
    return encoded.getvalue()


def _sign(label: str) -> Image.Image:
    """Returns a sign on a transparent ground, 256 x 256."""
    _, corners, angle, fill, edge, mark = CLASSES[label]
    sign = Image.new("RGBA", (_SIDE, _SIDE))
    draw = ImageDraw.Draw(sign)
    for radius, colour in ((124, edge), (104, fill)):
        draw.polygon(_corners(corners or 90, angle, radius), fill=colour)
    if mark == "—":
        draw.rectangle([52, 106, 204, 150], fill="#f4f4f4")
    elif mark == "/":
        draw.line([58, 58, 198, 198], fill=edge, width=22)
    elif mark == "o-o":
        draw.ellipse([58, 118, 118, 178], outline="#f4f4f4", width=9)
        draw.ellipse([138, 118, 198, 178], outline="#f4f4f4", width=9)
        draw.line([88, 148, 118, 92, 158, 92, 168, 148, 128, 148, 118, 92], fill="#f4f4f4", width=9)
    else:
        dark = "#f4f4f4" if fill != "#f7f7f7" else "#181818"
        font = ImageFont.load_default(size=118 if len(mark) < 3 else 66)
        draw.text((_MIDDLE, _MIDDLE), mark, fill=dark, font=font, anchor="mm", stroke_width=3, stroke_fill=dark)
    return sign


def _corners(count: int, angle: float, radius: float) -> Sequence[Point]:
    """Returns the corners of a regular polygon, the first at an angle in degrees, counted from the right, downwards."""
    turns = [math.radians(angle) + 2 * math.pi * number / count for number in range(count)]
    return [(_MIDDLE + radius * math.cos(turn), _MIDDLE + radius * math.sin(turn)) for turn in turns]
