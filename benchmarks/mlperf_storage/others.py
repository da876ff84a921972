"""Loaders to compare with, for the benchmark: one that decodes as peers do, and one that has every batch at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader


class AtHand(BaseDataLoader):  # type: ignore[misc]
    """Hands out one object forever: the utilization that the benchmark itself reaches on this machine, at most."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Reads nothing."""

    def next(self) -> Iterator[Any]:
        """Yields batches."""
        while True:
            yield {}

    def finalize(self) -> None:
        """Leaves nothing."""


class Images:
    """A map-style data set of files, decoded by simplejpeg and resized by OpenCV, without antialiasing."""

    def __init__(self, folder: str, pixels: int) -> None:
        self.files = sorted(map(str, Path(folder).iterdir()))
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        """Returns an image: uint8 (pixels, pixels, 3)."""
        import cv2
        import simplejpeg

        cv2.setNumThreads(1)
        return cv2.resize(simplejpeg.decode_jpeg(Path(self.files[index]).read_bytes()), (self.pixels, self.pixels))


class Decoding(AtHand):
    """torch's DataLoader, whose processes decode: the peer that takes the least CPU time of those measured."""

    def read(self) -> None:
        """Starts no process yet."""
        import torch.utils.data

        args = self._args
        self._loader = torch.utils.data.DataLoader(
            Images(f"{args.data_folder}/train", int(os.environ["DLIO_DECODE"])),  # type: ignore[arg-type]
            self.batch_size,
            shuffle=True,
            num_workers=args.read_threads,
            drop_last=True,
        )

    def next(self) -> Iterator[Any]:
        """Yields tensors."""
        return iter(self._loader)
