"""YOLO of Ultralytics, trained from packed sets by Ultralytics' own trainer and augmentation.

    for part in train val; do dlio pack coco8 yolo/$part --option split=$part; done
    python yolo_ultralytics.py yolo/train yolo/val --model yolo26n.yaml --epochs 100

Images and boxes come from the packed sets; mosaic, letterbox, the validation and the rest are Ultralytics'. It needs
the boxes of all images at the start, so each set is read once then, in order, by each process.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image
from ultralytics.data import YOLODataset
from ultralytics.models.yolo.detect import DetectionTrainer

from dlio.loaders.dataset import PackedSamples

FIELDS = ("image", "boxes", "labels")


class PackedYOLO(YOLODataset):
    """Ultralytics' data set, which reads a packed one; an image is known by its key."""

    def get_img_files(self, img_path: str) -> list[str]:
        """Opens the set; returns its keys."""
        self.packed = PackedSamples(img_path, fields=FIELDS)
        return [self.packed.key(number) for number in range(len(self.packed))]

    def get_labels(self) -> list[dict[str, Any]]:
        """Returns the boxes and the size of each image."""
        found: list[dict[str, Any]] = []
        for first in range(0, len(self.packed), 256):
            numbers = range(first, min(first + 256, len(self.packed)))
            for number, sample in zip(numbers, self.packed.read(numbers), strict=True):
                found.append(label_of(sample.fields) | {"number": number, "im_file": self.im_files[number]})
        return found

    def load_image(self, i: int, rect_mode: bool = True, resize_short: bool = False) -> Any:
        """Returns an image, BGR, its longer side resized as Ultralytics does, its first size and its size."""
        if self.ims[i] is not None:  # kept for mosaics
            return super().load_image(i, rect_mode, resize_short)
        [sample] = self.packed.read([self.labels[i]["number"]])
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION  # boxes are those of the image as it is stored
        image = cv2.imdecode(np.frombuffer(sample.fields["image"], np.uint8), flags)
        if image is None:
            raise ValueError(f"{sample.key}: OpenCV cannot decode this image")
        height, width = image.shape[:2]
        ratio = self.imgsz / max(height, width)
        size = min(math.ceil(width * ratio), self.imgsz), min(math.ceil(height * ratio), self.imgsz)
        if size != (width, height):
            image = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
        if self.augment:
            self._keep(i, image, (height, width))
        return image, (height, width), image.shape[:2]

    def _keep(self, i: int, image: Any, size: tuple[int, int]) -> None:
        """Keeps some recent images, from which Ultralytics makes mosaics."""
        self.ims[i], self.im_hw0[i], self.im_hw[i] = image, size, image.shape[:2]
        self.buffer.append(i)
        if 1 < len(self.buffer) >= self.max_buffer_length:
            oldest = self.buffer.pop(0)
            self.ims[oldest] = self.im_hw0[oldest] = self.im_hw[oldest] = None


def label_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a sample's boxes as Ultralytics wants them: centre, width and height as parts of the image."""
    width, height = Image.open(BytesIO(fields["image"])).size
    corners = np.asarray(fields["boxes"], np.float32) / np.float32([width, height, width, height])
    boxes = np.hstack([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]])
    classes = np.asarray(fields["labels"], np.float32)[:, None]
    own = {"shape": (height, width), "cls": classes, "bboxes": boxes}
    return own | {"segments": [], "keypoints": None, "normalized": True, "bbox_format": "xywh"}


class PackedTrainer(DetectionTrainer):
    """Ultralytics' trainer of detectors, whose `data.yaml` names packed sets."""

    def build_dataset(self, img_path: str, mode: str = "train", batch: int | None = None) -> PackedYOLO:
        """Returns the data set of a part, with Ultralytics' augmentation if it is for training."""
        train = mode == "train"
        own = {"augment": train, "hyp": self.args, "rect": self.args.rect or not train, "stride": 32}
        return PackedYOLO(
            img_path,
            data=self.data,
            task="detect",
            imgsz=self.args.imgsz,
            batch_size=batch,
            pad=0.0 if train else 0.5,
            **own,
        )


def main(words: Sequence[str] | None = None) -> PackedTrainer:
    """Trains on the sets of the command line; returns the trainer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="the packed set to train on")
    parser.add_argument("val", help="the packed set to validate on")
    parser.add_argument("--model", default="yolo26n.yaml", help="of random weights; or weights, such as yolo26n.pt")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--project", default="runs", help="the folder for weights and figures")
    given = parser.parse_args(words)
    project = Path(given.project).absolute()
    project.mkdir(parents=True, exist_ok=True)
    places = {part: str(Path(path).absolute()) for part, path in {"train": given.train, "val": given.val}.items()}
    (project / "data.yaml").write_text(json.dumps(places | {"names": PackedSamples(given.train).manifest.class_names}))
    own = {"model": given.model, "data": str(project / "data.yaml"), "epochs": given.epochs, "imgsz": given.size}
    others = {"batch": given.batch_size, "workers": given.workers, "project": str(project)}
    trainer = PackedTrainer(overrides=own | others)
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
