"""RF-DETR, trained from packed sets by its own modules and augmentation.

    for part in train valid; do dlio pack my-project rfdetr/$part --option split=$part; done
    python rf_detr.py rfdetr/train rfdetr/valid --weights rf-detr-nano.pth

`my-project` is Roboflow's export, in the layout of YOLO or of COCO. Only the reading is dlio's; without `--weights`
training starts from random ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pytorch_lightning import Trainer
from rfdetr.config import ModelConfig, RFDETRNanoConfig, TrainConfig
from rfdetr.datasets.coco import make_coco_transforms_square_div_64
from rfdetr.training import RFDETRDataModule, RFDETRModelModule, build_trainer

from dlio.loaders.torch import PackedDataset


class PackedDetection(torch.utils.data.Dataset[Any]):
    """(image, target) of each sample, as RF-DETR's own data sets give them."""

    def __init__(self, path: str, transform: Callable[[Any, Any], Any]) -> None:
        self.packed = PackedDataset(path, fields=("image", "boxes", "labels", "areas", "crowd"), upright=True)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Any:
        """Returns the image and its boxes after RF-DETR's transform; crowds are left out, as RF-DETR does."""
        sample = self.packed[index]
        image, single = sample["image"], ~sample["crowd"]
        target = {"boxes": sample["boxes"][single], "labels": sample["labels"][single], "area": sample["areas"][single]}
        size = torch.tensor([image.height, image.width])
        own = {"iscrowd": torch.zeros(int(single.sum()), dtype=torch.int64), "image_id": torch.tensor([index])}
        return self.transform(image, target | own | {"orig_size": size, "size": size.clone()})


class PackedData(RFDETRDataModule):  # type: ignore[misc]
    """RF-DETR's data module over two packed sets."""

    def __init__(self, model_config: ModelConfig, train_config: TrainConfig, train: str, val: str) -> None:
        super().__init__(model_config, train_config)
        self._dataset_train = PackedDetection(train, self._transform("train"))
        self._dataset_val = PackedDetection(val, self._transform("val"))

    def setup(self, stage: str) -> None:
        """Does nothing: the sets are open."""

    def _transform(self, part: str) -> Callable[[Any, Any], Any]:
        model, given = self.model_config, self.train_config
        size = {"patch_size": model.patch_size, "num_windows": model.num_windows}
        return make_coco_transforms_square_div_64(part, model.resolution, aug_config=given.aug_config, **size)


def main(words: Sequence[str] | None = None) -> Trainer:
    """Trains on the sets of the command line; returns Lightning's trainer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="the packed set to train on")
    parser.add_argument("val", help="the packed set to validate on")
    parser.add_argument("--weights", help="such as rf-detr-nano.pth")
    parser.add_argument("--size", type=int, default=384, help="of the images, a multiple of 32")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--output", default="output", help="the folder for weights and figures")
    given = parser.parse_args(words)
    classes = PackedDataset(given.train).classes
    size = {"resolution": given.size, "positional_encoding_size": given.size // 16}
    model_config = RFDETRNanoConfig(pretrain_weights=given.weights, num_classes=len(classes), **size)
    others = {"batch_size": given.batch_size, "num_workers": given.workers, "output_dir": given.output}
    train_config = TrainConfig(dataset_dir=None, epochs=given.epochs, class_names=classes, tensorboard=False, **others)
    trainer = build_trainer(train_config, model_config)
    data = PackedData(model_config, train_config, given.train, given.val)
    trainer.fit(RFDETRModelModule(model_config, train_config), data)
    return trainer


if __name__ == "__main__":
    main()
