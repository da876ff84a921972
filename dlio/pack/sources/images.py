"""A folder of images without labels, in the folder itself and below it, in the order of their paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from dlio.dataset.schema import Sample
from dlio.errors import SourceError
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Listing, Numbers, Refused
from dlio.pack.listing.image_files import file_sizes, image_file_listing, image_file_reader
from dlio.pack.listing.image_tree import EXTENSIONS, LeftOut, is_folder, walk_each
from dlio.pack.listing.lists import Listed


def images(path: str | Path) -> Images:
    """Returns the images in `path` and below it, without labels; a key is the path below `path`."""
    return Images(Path(path).absolute())


open_source = images
IS_GENERAL = True


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder of images without folders."""
    with storage_errors("list", path):
        if not path.is_dir():
            return False
        with os.scandir(path) as found:
            has_images = False
            for entry in found:
                if is_folder(entry):
                    return False
                has_images |= entry.name.lower().endswith(EXTENSIONS)
        return has_images


@dataclass(frozen=True, slots=True)
class Images:
    """See `images`."""

    path: Path
    name: str = "images"

    @property
    def folder(self) -> Path:
        """The folder below which keys are paths; see `FileSource`."""
        return self.path

    def listing(self) -> Listing:
        """Returns all images; lists every folder once."""
        refused, left_out = Refused(), LeftOut()
        [tree] = walk_each(self.path, [""], refused, left_out)
        listed = Listed[None](self.path, refused=refused)
        paths = sorted(found if folder == "." else f"{folder}/{found}" for folder, names in tree for found in names)
        for number, name in enumerate(paths, start=1):
            listed.add(number, name, None)
        listed.refuse_names()
        if not paths and not refused:
            raise SourceError(f"{self.path} has no images ({' '.join(EXTENSIONS)}) to pack")
        return replace(image_file_listing(self.path, listed, None, ()), left_out=str(left_out))

    def sizes(self, listing: Listing) -> Numbers | None:
        """Returns the exact size of each image, in bytes."""
        return file_sizes(self.path, listing.keys)

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image."""
        return image_file_reader(self.path, listing)
