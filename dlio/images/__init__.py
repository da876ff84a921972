"""Transforms of images, for every framework alike: `transform=RandomResizedCrop(224, flip=True)`, or a list of several:

    transform=[RandomCrop(32, padding=4, flip=True), ColorJitter(0.4, 0.4, 0.4), RandomErasing()]

The first one chooses a part of each image (`Transform`): RandomResizedCrop, CenterCrop, Resize, RandomCrop, or Pad
around one of them. The next ones change its pixels in turn (`Effect`): ColorJitter, Grayscale, RandomErasing,
TrivialAugmentWide, RandAugment, AutoAugment, RandomVerticalFlip, RandomQuarterTurns. The last one may mix the samples
of a batch (`Mix`): Mixup, CutMix, or RandomChoice of these. All but RandomQuarterTurns are torchvision's transforms of
these names on PIL images. Random numbers follow from the sample's key and the place in the list, so a run can be
repeated.

`Normalize` is not a transform: it converts the uint8 images of a batch to floats, on the batch's device.
"""

from __future__ import annotations

from dlio.images.augment import AutoAugment, RandAugment, TrivialAugmentWide
from dlio.images.composed import Composed, Transforms, composed
from dlio.images.effects import ColorJitter, Effect, Grayscale, RandomErasing, RandomQuarterTurns, RandomVerticalFlip
from dlio.images.mixing import CutMix, Mix, Mixup, RandomChoice
from dlio.images.normalize import Normalize
from dlio.images.padded import Pad, RandomCrop
from dlio.images.windows import WHITE, CenterCrop, RandomResizedCrop, Resize, Sizes, Transform, Windows

__all__ = [
    "WHITE",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "Composed",
    "CutMix",
    "Effect",
    "Grayscale",
    "Mix",
    "Mixup",
    "Normalize",
    "Pad",
    "RandAugment",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomQuarterTurns",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "Sizes",
    "Transform",
    "Transforms",
    "TrivialAugmentWide",
    "Windows",
    "composed",
]
