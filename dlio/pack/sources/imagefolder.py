"""A folder of class folders, in torchvision's order: class folders sorted, then folders and files below them sorted."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlio.errors import SourceError, StorageError
from dlio.pack.image_files import file_states, image_file_reader
from dlio.pack.keys import Keys
from dlio.pack.listing import Listing
from dlio.sample import IMAGE_CLASSIFICATION, Sample, Schema

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


def image_folder(path: str | Path) -> ImageFolder:
    """Returns the images below `path`, whose sub-folders name the classes; a key is the path below `path`."""
    return ImageFolder(Path(path).absolute())


def recognises(path: Path) -> bool:
    """Tells whether `path` is a folder of folders."""
    return path.is_dir() and any(entry.is_dir() for entry in _scan(path))


open_source = image_folder


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """See `image_folder`."""

    path: Path
    name: str = "imagefolder"

    def listing(self) -> Listing:
        """Returns all images, found with one look at every folder."""
        import numpy as np

        classes = sorted(entry.name for entry in _scan(self.path) if entry.is_dir())
        if not classes:
            raise SourceError(f"{self.path} has no class folders: expected one folder of images for each class")
        labels = array("q")
        keys = Keys.of(self._names(classes, labels))  # distinct, since paths are
        columns = {"label": np.frombuffer(labels, dtype="int64")}
        schema = Schema(IMAGE_CLASSIFICATION.fields, tuple(classes))
        sizes, versions = file_states(self.path, keys)
        return Listing(schema, keys, sizes, columns, versions=versions)

    def _names(self, classes: list[str], labels: array[int]) -> Iterator[str]:
        """Yields the path of each image below the folder, having added its label to `labels`."""
        above = frozenset([_identity(self.path)])
        for label, name in enumerate(classes):
            before = len(labels)
            for folder, images in sorted(_walk(self.path / name, above), key=lambda found: found[0]):
                below = os.path.relpath(folder, self.path)
                labels.extend([label] * len(images))
                yield from [f"{below}/{image}" for image in sorted(images)]
            if len(labels) == before:
                raise SourceError(f"{self.path / name} has no images ({' '.join(EXTENSIONS)}): remove the folder")

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives what reads one image with its class index."""
        return image_file_reader(self.path, listing)


def _walk(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder and its images' names, following links; `above` are the folders it is in, by identity."""
    identity = _identity(folder)
    if identity in above:
        raise SourceError(f"{folder} leads back to a folder above it: remove the symbolic link")
    entries = _scan(folder)
    names = (entry.name for entry in entries if not entry.is_dir())
    yield str(folder), [name for name in names if name.lower().endswith(EXTENSIONS)]
    for entry in entries:
        if entry.is_dir():
            yield from _walk(Path(entry.path), above | {identity})


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise StorageError(error.errno, f"cannot list {folder}: {error.strerror}") from error
