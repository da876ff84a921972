"""Makes `import torchvision` work with torch for CPUs, where its compiled operators, which need CUDA, do not load.

Its Python registers properties of these operators, so they must at least be declared. Images are read and transformed
by Pillow, which needs none of them; detectors need the suppression of boxes, which is done here in Python.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _nms(boxes: torch.Tensor, scores: torch.Tensor, limit: float) -> torch.Tensor:
    """Returns which boxes (n, 4) stay, best first: none overlaps a better one by more than `limit` of their union."""
    order, kept = scores.argsort(descending=True, stable=True), []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        corners = torch.maximum(boxes[best, :2], boxes[order, :2]), torch.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = (corners[1] - corners[0]).clamp(min=0).prod(1)
        order = order[shared <= limit * (areas[best] + areas[order] - shared)]
    return torch.stack(kept) if kept else order


_library.impl("nms", _nms, "CPU")

import torchvision.extension  # noqa: E402

torchvision.extension._has_ops = lambda: True
