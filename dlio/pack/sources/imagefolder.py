"""A folder of class folders, in torchvision's order: class folders sorted, then folders and files below them sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SourceError
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Listing, Refused
from dlio.pack.listing.image_files import file_states, image_file_reader
from dlio.pack.listing.image_objects import ImageObjects
from dlio.pack.listing.image_tree import EXTENSIONS, folders_in, walk_each
from dlio.pack.listing.keys import Keys, odd, printable
from dlio.urls import is_url


def image_folder(path: str | Path) -> ImageFolder | ImageObjects:
    """Returns the images below `path`, whose sub-folders name the classes; a key is the path below `path`.

    Args:
        path: a folder, or a URL such as `s3://bucket/photos`, for which dlio[remote] is needed.
    """
    if is_url(path):
        return ImageObjects(str(path))
    return ImageFolder(Path(path).absolute())


open_source = image_folder
IS_GENERAL = True


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder of folders."""
    with storage_errors("list", path):
        return path.is_dir() and any(entry.is_dir() for entry in path.iterdir())


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """See `image_folder`."""

    path: Path
    name: str = "imagefolder"

    def listing(self) -> Listing:
        """Returns all images; lists every folder once."""
        folders = folders_in(self.path)
        if not folders:
            raise SourceError(f"{self.path} has no class folders: expected one folder of images for each class")
        counts, refused = dict[str, int](), Refused()
        keys = Keys.of(self._names(folders, counts, refused))  # distinct, since paths are
        labels = np.repeat(np.arange(len(counts)), list(counts.values()))
        sizes, versions = file_states(self.path, keys)
        schema = Schema(IMAGE_CLASSIFICATION.fields, tuple(counts))
        return Listing(schema, keys, sizes, {"label": labels}, versions=versions, refused=refused)

    def _names(self, folders: list[str], counts: dict[str, int], refused: Refused) -> Iterator[str]:
        """Yields the path of each image; adds the number of images of each class to `counts`."""
        for name, found in zip(folders, walk_each(self.path, folders, refused), strict=True):
            count = 0
            for below, images in sorted(found):
                paths = self._keys([f"{below}/{image}" for image in images], refused)
                count += len(paths)
                yield from paths
            if count:
                counts[name] = count
            else:
                problem = f"{self.path / name} has no images ({' '.join(EXTENSIONS)}) to pack: remove the folder"
                refused.append((printable(name), problem))

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image with its class index."""
        return image_file_reader(self.path, listing)

    def _keys(self, paths: list[str], refused: Refused) -> list[str]:
        """Returns the paths that are keys; adds the others to `refused`."""
        try:
            "".join(paths).encode()
        except UnicodeEncodeError:
            reasons = [(path, odd(path)) for path in paths]
            refused += [(printable(path), f"{self.path}: {reason}") for path, reason in reasons if reason]
            return [path for path, reason in reasons if not reason]
        return paths
