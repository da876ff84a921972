"""Trains with timm, Ultralytics or RF-DETR from what dlio has packed: `vision_job.py PEER FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not torch.version.cuda:
    import benchmarks.loaders.torchvision_on_cpu  # noqa: F401

from dlio.loaders.torch import PackedDataset


def timm_(folder: Path) -> dict[str, Any]:
    """Compares batches with those of timm's own data set of the photos; the page docs/how-to/timm.md trains."""
    from timm.data import create_dataset, create_loader

    device = torch.device("cpu")
    own = {"input_size": 32, "batch_size": 4, "num_workers": 2, "device": device, "persistent_workers": False}
    theirs = create_loader(create_dataset("", root=str(folder / "photos")), **own)
    pairs = list(zip(theirs, create_loader(PackedDataset(str(folder / "packed")), **own), strict=True))
    same = all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)
    return {"same": same, "batches": len(pairs)}


def ultralytics_(folder: Path) -> dict[str, Any]:
    """Compares samples with those of Ultralytics' own data set of the files; trains by the example."""
    from ultralytics.cfg import get_cfg
    from ultralytics.data import YOLODataset

    from tools.examples import yolo_ultralytics

    own = {"task": "detect", "imgsz": 64, "augment": False, "hyp": get_cfg(), "rect": True, "batch_size": 2, "pad": 0.5}
    data = {"names": {0: "cat", 1: "dog"}, "nc": 2, "channels": 3}
    theirs = YOLODataset(str(folder / "yolo/images/train"), data=data, **own)
    packed = yolo_ultralytics.PackedYOLO(str(folder / "train"), data=data, **own)
    same = all(
        Path(a["im_file"]).name == Path(b["im_file"]).name
        and a["ori_shape"] == b["ori_shape"]
        and all(torch.allclose(a[name].float(), b[name].float(), atol=1e-4) for name in ("img", "cls", "bboxes"))
        for a, b in zip(theirs, packed, strict=True)
    )
    words = [str(folder / "train"), str(folder / "val"), "--epochs", "1", "--batch-size", "4", "--size", "64"]
    trainer = yolo_ultralytics.main([*words, "--workers", "2", "--project", str(folder / "runs")])
    return {
        "same": same,
        "losses": [float(loss) for loss in trainer.tloss.values()],
        "validated": trainer.validator.seen,
    }


def rfdetr_(folder: Path) -> dict[str, Any]:
    """Compares samples with those of RF-DETR's own data set of the files; trains by the example."""
    from rfdetr.datasets.coco import make_coco_transforms_square_div_64
    from rfdetr.datasets.yolo import YoloDetection

    from tools.examples import rf_detr

    transform = make_coco_transforms_square_div_64("val", 64, patch_size=16, num_windows=2)
    places = {"img_folder": "images/train", "lb_folder": "labels/train", "data_file": "data.yaml"}
    given = {name: str(folder / "yolo" / place) for name, place in places.items()}
    theirs = YoloDetection(**given, transforms=transform)
    packed = rf_detr.PackedDetection(str(folder / "train"), transform)
    same = all(
        torch.equal(image, other)
        and target.keys() == found.keys()
        and all(np.allclose(target[name], found[name], atol=1e-4) for name in target)
        for (image, target), (other, found) in zip(theirs, packed, strict=True)
    )
    words = [str(folder / "train"), str(folder / "val"), "--epochs", "1", "--size", "64", "--workers", "2"]
    trainer = rf_detr.main([*words, "--output", str(folder / "output")])
    losses = [trainer.callback_metrics["train/loss"].item()]
    return {"same": same, "steps": trainer.global_step, "losses": losses}


if __name__ == "__main__":
    peers = {"timm": timm_, "ultralytics": ultralytics_, "rfdetr": rfdetr_}
    told = peers[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(told) + "\n")
