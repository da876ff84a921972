"""A folder of images without labels, in the folder itself and below it, in the order of their paths."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from dlio.errors import SourceError
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Listing, Refused
from dlio.pack.listing.image_files import ImageFiles, image_file_listing
from dlio.pack.listing.image_tree import EXTENSIONS, LeftOut, images_below, is_folder
from dlio.pack.listing.lists import Listed


def images(path: str | Path) -> ImageFiles:
    """Returns the images in `path` and below it, without labels; a key is the path below `path`."""
    path = Path(path).absolute()
    return ImageFiles("images", path, path, partial(_listing, path))


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


def _listing(path: Path) -> Listing:
    """Returns all images; lists every folder once."""
    refused, left_out = Refused(), LeftOut()
    paths = images_below(path, refused, left_out)
    listed = Listed[None](path, refused=refused)
    for number, name in enumerate(sorted(paths), start=1):
        listed.add(number, name, None)
    listed.refuse_names()
    if not paths and not refused:
        raise SourceError(f"{path} has no images ({' '.join(EXTENSIONS)}) to pack")
    return replace(image_file_listing(path, listed, None, ()), left_out=str(left_out))
