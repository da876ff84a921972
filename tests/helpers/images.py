"""Real encoded images, the same bytes for the same arguments."""

from __future__ import annotations

import numpy as np
from PIL import Image

from dlio.testing.images import encoded, image, make_image_folder, pixels

__all__ = ["encoded", "image", "make_image_folder", "photo", "pixels"]


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Returns a picture with smooth areas and detail, as photographs have."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 255, (5, 7, 3), dtype=np.uint8)).resize((width, height))
    noise = generator.integers(-12, 12, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse).astype(int) + noise, 0, 255).astype(np.uint8))
