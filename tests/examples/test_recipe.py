"""The example of torchvision's recipe, in this process: a small network learns classes from mixed images."""

from __future__ import annotations

import re
from pathlib import Path

from dlio.cli import main
from tests.examples.observe import NUM_TEST, NUM_TRAIN
from tests.helpers.lazy import Lazy

torch = Lazy("torch")
nn = Lazy("torch", "nn")
imagenet_recipe = Lazy("tools.examples.imagenet_recipe")
WORDS = "--size 24 --val-size 24 --batch-size 8 --epochs 4 --warm-up 1 --workers 2 --rate 0.2"


def test_a_network_learns_from_mixed_batches(imagenet: Path, capsys) -> None:
    for part in ("train", "val"):
        source, out = str(imagenet / "ILSVRC2012" / part), str(imagenet / "packed" / part)
        assert main(["pack", source, out, "--format", "tfrecord", "--engine", "serial", "--quiet"]) == 0
    train, val = (str(imagenet / "packed" / part) for part in ("train", "val"))
    options = imagenet_recipe.arguments([train, val, *WORDS.split()])
    batches, checked = imagenet_recipe.open_loaders(options, torch.device("cpu"))
    images, labels = next(iter(batches))
    assert images.shape == (8, 3, 24, 24) and images.dtype == torch.uint8
    assert labels.shape == (8, 3) and labels.dtype == torch.float32 and torch.allclose(labels.sum(1), torch.ones(8))
    assert sum(int(valid.sum()) for _, _, valid in checked) == NUM_TEST
    batches.close()
    checked.close()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    imagenet_recipe.train(network.append(nn.Linear(8, 3)), options, torch.device("cpu"))
    found = re.findall(r"epoch \d: loss ([0-9.]+), top-1 of the mean ([0-9.]+)%", capsys.readouterr().out)
    assert len(found) == 4 and float(found[-1][0]) < float(found[0][0])
    assert len(batches) == NUM_TRAIN // 8
