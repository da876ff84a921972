"""A folder of class folders, in torchvision's order: class folders sorted, then folders and files below them sorted."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlio.errors import SourceError, StorageError
from dlio.pack.keys import Keys
from dlio.pack.listing import Listing, file_bytes, image_file_reader
from dlio.sample import IMAGE_CLASSIFICATION, Sample, Schema

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's


def image_folder(path: str | Path) -> ImageFolder:
    """Returns the images below `path`, whose sub-folders name the classes; a key is the path below `path`."""
    return ImageFolder(Path(path).absolute())


def recognises(path: Path) -> bool:
    """Tells whether `path` is a folder of folders."""
    return path.is_dir() and any(entry.is_dir() for entry in _scan(path))


def open_source(path: Path, root: Path | None) -> ImageFolder:
    """Returns the source at `path`, or at `root` where that is given."""
    return image_folder(root or path)


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
        labels, sizes = array("q"), array("q")
        keys = Keys.of(self._names(classes, labels, sizes))
        keys.check_distinct()
        columns = {"label": np.frombuffer(labels, dtype="int64")}
        schema = Schema(IMAGE_CLASSIFICATION.fields, tuple(classes))
        return Listing(schema, keys, np.frombuffer(sizes, dtype="int64"), columns)

    def _names(self, classes: list[str], labels: array[int], sizes: array[int]) -> Iterator[str]:
        """Yields the path of each image below the folder, having added its label and size to theirs."""
        for label, name in enumerate(classes):
            before = len(labels)
            for folder, entries in sorted(_walk(self.path / name, frozenset()), key=lambda found: found[0]):
                below = os.path.relpath(folder, self.path)
                for entry in sorted(entries, key=lambda entry: entry.name):
                    labels.append(label)
                    sizes.append(file_bytes(entry))
                    yield f"{below}/{entry.name}"
            if len(labels) == before:
                raise SourceError(f"{self.path / name} has no images ({' '.join(EXTENSIONS)}): remove the folder")

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives what reads one image with its class index."""
        return image_file_reader(self.path, listing)


def _walk(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Yields each folder and its image files, following links; `above` are the folders it is in, by identity."""
    identity = folder.stat().st_dev, folder.stat().st_ino
    if identity in above:
        raise SourceError(f"{folder} leads back to a folder above it: remove the symbolic link")
    entries = _scan(folder)
    yield str(folder), [entry for entry in entries if entry.name.lower().endswith(EXTENSIONS) and not entry.is_dir()]
    for entry in entries:
        if entry.is_dir():
            yield from _walk(Path(entry.path), above | {identity})


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise StorageError(error.errno, f"cannot list {folder}: {error.strerror}") from error
