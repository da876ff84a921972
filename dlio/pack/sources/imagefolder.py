"""A folder of class folders, in torchvision's order: class folders sorted, then folders and files below them sorted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlio.errors import SourceError, StorageError
from dlio.pack.listing import Listing, check_keys, file_bytes, read_image_file
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
        keys: list[str] = []
        labels: list[int] = []
        sizes: list[int] = []
        for label, name in enumerate(classes):
            found = [
                (entry.path, file_bytes(entry))
                for _, entries in sorted(_walk(self.path / name, frozenset()), key=lambda folder: folder[0])
                for entry in sorted(entries, key=lambda entry: entry.name)
            ]
            if not found:
                raise SourceError(f"{self.path / name} has no images ({' '.join(EXTENSIONS)}): remove the folder")
            keys += [os.path.relpath(path, self.path) for path, _ in found]
            sizes += [size for _, size in found]
            labels += [label] * len(found)
        check_keys([*classes, *keys])
        schema = Schema(IMAGE_CLASSIFICATION.fields, tuple(classes))
        return Listing(schema, keys, np.array(sizes, dtype="int64"), {"label": np.array(labels, dtype="int64")})

    def read(self, listing: Listing, index: int) -> Sample:
        """Returns one image with its class index."""
        return read_image_file(self.path, listing, index)


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
