"""Makes `import torchvision` work beside torch for CPUs, where its compiled operators, which need CUDA, do not load.

Its Python registers properties of these operators, so they must at least be declared. Images are read and transformed
by Pillow, which needs none of them.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision  # noqa: E402, F401
