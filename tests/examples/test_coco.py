"""The detection example, in this process: a small detector finds one square in each image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dlio.cli import main
from tests.helpers.images import encoded
from tests.helpers.lazy import Lazy

torch = Lazy("torch")
coco_detection = Lazy("tools.examples.coco_detection")


def centre() -> Any:
    """Returns what learns where the middle of the first box is; takes and returns what torchvision's detectors do."""

    class Centre(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(3 * 16 * 16, 2)

        def forward(self, images, targets):
            seen = torch.nn.functional.adaptive_avg_pool2d(torch.stack(images), 16).flatten(1)
            middles = [
                (t["boxes"][0, :2] + t["boxes"][0, 2:]) / 128 if len(t["boxes"]) else torch.zeros(2) for t in targets
            ]
            assert all((t["labels"] == 1).all() for t in targets)
            return {"middle": ((self.last(seen) - torch.stack(middles)) ** 2).mean()}

    return Centre()


def write_coco(folder: Path, count: int) -> Path:
    draw, boxes = np.random.default_rng(0), []
    for number in range(count):
        left, top = draw.integers(0, 60, 2).tolist()
        pixels = np.zeros((80, 80, 3), "uint8")
        pixels[top : top + 20, left : left + 20] = 255
        (folder / f"{number}.png").write_bytes(encoded(Image.fromarray(pixels), "PNG"))
        boxes.append({"id": number, "image_id": number, "category_id": 44, "bbox": [left, top, 20, 20], "area": 400})
    images = [{"id": n, "file_name": f"{n}.png", "width": 80, "height": 80} for n in range(count)]
    found = {"images": images, "annotations": boxes, "categories": [{"id": 44, "name": "square"}]}
    (folder / "coco.json").write_text(json.dumps(found))
    return folder / "coco.json"


def test_a_detector_learns_where_the_boxes_are(tmp_path, capsys):
    words = ["pack", str(write_coco(tmp_path, 64)), str(tmp_path / "out"), "--format", "webdataset", "--quiet"]
    assert main([*words, "--engine", "serial"]) == 0
    torch.manual_seed(0)
    loader = coco_detection.open_loader(str(tmp_path / "out"), 64, 16)
    assert loader.dataset.classes == ["square"]
    coco_detection.train(centre(), loader, 8, torch.device("cpu"))
    losses = [float(found) for found in re.findall(r"64 images, loss ([0-9.]+)", capsys.readouterr().out)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
