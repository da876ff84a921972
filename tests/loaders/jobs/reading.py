"""What the jobs read, how they tell which photos they saw, and where they report it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DATA, FOLDER = sys.argv[1:3]


def numbers(images: Any) -> list[int]:
    """Returns which photo each image was made of; images are channels first or last."""
    photos: list[int] = images[:, 0, 0, 0].tolist()
    return photos


def report(rank: int, told: Any) -> None:
    """Leaves what a rank has to tell, as JSON, for the test to read."""
    Path(FOLDER, f"rank{rank}.json").write_text(json.dumps(told))
