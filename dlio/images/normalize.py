"""Converts the images of a batch to floats where the batch is: in the core, or on a tensor's device."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from dlio import native
from dlio.errors import UsageError

if TYPE_CHECKING:
    import torch

_DTYPES = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}  # and unsigned numbers of their size


@dataclass(frozen=True, slots=True)
class Normalize:
    """(pixel / 255 - mean) / std for each channel, as torchvision's ToTensor and Normalize compute it, in float32.

    Called with a batch of uint8 images: a NumPy array (n, height, width, channels), or a torch tensor
    (n, channels, height, width) on any device. Returns a new batch of the same shape, on the same device.

        normalize = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype="float16", channels_last=True)
        for images, labels in DataLoader(dataset, 256, device="cuda"):
            output = model(normalize(images))

    Immutable, picklable, safe for several threads.

    Attributes:
        mean, std: one number for each channel, of pixels from 0 to 1.
        dtype: of the result: float32, float16, or for tensors bfloat16.
        channels_last: whether the result of a tensor lies in memory as torch.channels_last, which convolutions read
            faster on GPUs; its shape is the same.

    Raises:
        UsageError: no or different numbers of channels, a std that is not above 0, or another dtype.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str = "float32"
    channels_last: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        if not len(self.mean) == len(self.std) > 0:
            raise UsageError(f"{len(self.mean)} means and {len(self.std)} stds: expected one of each for every channel")
        if not (np.isfinite([*self.mean, *self.std]).all() and min(self.std) > 0):
            raise UsageError(f"mean={self.mean}, std={self.std}: expected finite numbers, and stds above 0")
        if self.dtype not in _DTYPES:
            raise UsageError(f"dtype={self.dtype!r}: expected {', '.join(_DTYPES)}")

    @overload
    def __call__(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating[Any]]: ...

    @overload
    def __call__(self, images: torch.Tensor) -> torch.Tensor: ...

    def __call__(self, images: Any) -> Any:
        """Returns the floats of a batch.

        Raises:
            UsageError: the images are not uint8, or have another number of channels, or an array would be bfloat16.
        """
        if isinstance(images, np.ndarray):
            self._check(str(images.dtype), images.shape, -1)
            return self._of_array(images)
        self._check(str(images.dtype).removeprefix("torch."), tuple(images.shape), 1)
        return self._of_tensor(images)

    def _check(self, dtype: str, shape: tuple[int, ...], axis: int) -> None:
        if dtype != "uint8" or len(shape) != 4 or shape[axis] != len(self.mean):
            expected = f"uint8 images with {len(self.mean)} channels on axis {axis % 4} of 4"
            raise UsageError(f"a batch of {dtype} with shape {shape}: expected {expected}")

    def _of_array(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating[Any]]:
        if self.dtype == "bfloat16":
            raise UsageError("NumPy has no bfloat16: give Normalize float32 or float16, or a torch tensor")
        levels = _levels(self).astype(self.dtype)
        out = np.empty(images.shape, self.dtype)
        if native.available:
            self._by_core(images, levels, out, channel=3, out_channel=3)
        else:
            for channel, each in enumerate(levels):
                out[..., channel] = each[images[..., channel]]
        return out

    def _of_tensor(self, images: torch.Tensor) -> Any:
        torch = sys.modules["torch"]
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        dtype = getattr(torch, self.dtype)
        if type(images) is torch.Tensor and images.device.type == "cpu" and native.available:
            out = torch.empty(images.shape, dtype=dtype, memory_format=layout)
            rows = out.permute(0, 2, 3, 1) if self.channels_last else out
            bits = torch.int32 if self.dtype == "float32" else torch.int16
            levels = torch.from_numpy(_levels(self)).to(dtype)
            channel = 3 if self.channels_last else 1
            self._by_core(images.numpy(), levels.view(bits).numpy(), rows.view(bits).numpy(), 1, channel)
            return out
        most, mean, std = _factors(self, images.device)
        floats = images.to(torch.float32, memory_format=layout)
        return floats.div_(most).sub_(mean).div_(std).to(dtype)

    def _by_core(
        self, images: npt.NDArray[Any], levels: npt.NDArray[Any], out: npt.NDArray[Any], channel: int, out_channel: int
    ) -> None:
        """Fills `out` by a table of each channel's 256 levels; `channel` is the axis of the channels."""
        bits = _DTYPES[self.dtype]
        native.normalize(np.ascontiguousarray(images), levels.view(bits), out.view(bits), channel, out_channel)


def _levels(normalize: Normalize) -> npt.NDArray[np.float32]:
    """Returns the result for each of the 256 levels of each channel: (channels, 256)."""
    mean, std = (np.array(each, np.float32)[:, None] for each in (normalize.mean, normalize.std))
    levels: npt.NDArray[np.float32] = (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / std
    return levels


def _factors(normalize: Normalize, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns what pixels are divided by, less, and divided by, on a device: GPUs multiply by inverses of scalars.

    They are made for each batch: kept ones would belong to the mode, such as torch.compile's, that made them.
    """
    torch = sys.modules["torch"]
    rows = [[255.0] * len(normalize.mean), normalize.mean, normalize.std]
    most, mean, std = torch.tensor(rows, dtype=torch.float32, device=device).view(3, 1, -1, 1, 1)
    return most, mean, std
