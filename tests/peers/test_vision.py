"""timm, Ultralytics' YOLO and RF-DETR get the same samples from packed sets as from files, and train on them."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.cli import main
from tests.helpers.images import encoded, make_image_folder
from tests.peers import installed

pytestmark = pytest.mark.jobs

JOB = Path(__file__).with_name("vision_job.py")


def run(peer: str, folder: Path) -> dict[str, Any]:
    own = {"YOLO_OFFLINE": "true", "YOLO_CONFIG_DIR": str(folder / "settings"), "HF_HUB_OFFLINE": "1"}
    own |= {"HF_HOME": str(folder / "home"), "MPLCONFIGDIR": str(folder / "fonts")}
    told = installed.run([sys.executable, "-W", "ignore", JOB, peer, folder], own, cwd=folder)
    return json.loads(told.splitlines()[-1])


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    """A folder with the parts `train` and `val`, packed from YOLO's layout: images of several sizes, 0 to 2 boxes."""
    draw, root = np.random.default_rng(0), tmp_path / "yolo"
    for part, count in {"train": 8, "val": 4}.items():
        for number in range(count):
            image, lines = root / f"images/{part}/{number}.png", root / f"labels/{part}/{number}.txt"
            image.parent.mkdir(parents=True, exist_ok=True)
            lines.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 255, (40 + 8 * number, 64, 3), "uint8")
            image.write_bytes(encoded(Image.fromarray(pixels), "PNG"))
            lines.write_text("".join(f"{box} 0.5 0.{4 + box} 0.25 0.5\n" for box in range(number % 3)))
    (root / "data.yaml").write_text("names: [cat, dog]\n")
    for part in ("train", "val"):
        words = ["pack", str(root), str(tmp_path / part), "--option", f"split={part}"]
        assert main([*words, "--engine", "serial", "--quiet"]) == 0
    return tmp_path


def test_timm_gets_the_same_batches_from_a_packed_set(tmp_path: Path) -> None:
    installed.require("timm", "torchvision")
    make_image_folder(tmp_path / "photos", {"cat": 10, "dog": 10})
    dlio.pack(tmp_path / "photos", tmp_path / "packed")
    told = run("timm", tmp_path)
    assert told["same"] and told["batches"] == 5


def test_ultralytics_trains_on_a_set_packed_from_its_layout(yolo: Path) -> None:
    installed.require("ultralytics", "torchvision", "cv2", "matplotlib")
    told = run("ultralytics", yolo)
    assert told["same"] and told["validated"] == 4
    assert len(told["losses"]) == 3 and all(map(math.isfinite, told["losses"]))
    assert (yolo / "runs/train/weights/last.pt").exists()


def test_rf_detr_trains_on_a_set_packed_from_its_layout(yolo: Path) -> None:
    installed.require("rfdetr", "torchvision", "supervision", "vernier")
    told = run("rfdetr", yolo)
    assert told["same"] and told["steps"] >= 2
    assert all(map(math.isfinite, told["losses"]))
