"""Images with masks: two folders, in which an image and its mask have the same path except for the suffix.

The fields are `image` and `mask`, both encoded. A mask is a PNG of one channel, or with a palette: its pixel values are
class indices, and are kept unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from dlio.dataset.schema import Sample, Schema
from dlio.errors import SourceError, UsageError
from dlio.pack.listing.base import Listing, Refused
from dlio.pack.listing.image_files import file_states, image_file_listing, path_below, read_file, version_of
from dlio.pack.listing.image_tree import images_below
from dlio.pack.listing.keys import Keys
from dlio.pack.listing.lists import Listed
from dlio.pack.prefetch import Prefetcher

IMAGES, MASKS = "images", "masks"
_SUFFIX = ".png"
_MASK_NAME = "mask name"  # the column of a listing: the path of each mask, which may end with .PNG


def masks(path: str | Path, masks: str | Path = "") -> Masks:
    """Returns the images of a folder with their masks.

    Args:
        path: a folder with the folders `images` and `masks`; with `masks`, the folder of the images.
        masks: the folder of the masks, from `path`, such as `../SegmentationClass`.
    """
    path = Path(path).absolute()
    if masks:
        return Masks(path, path, path / masks)
    return Masks(path, path / IMAGES, path / MASKS)


open_source = masks


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with `images` and `masks`."""
    return (path / IMAGES).is_dir() and (path / MASKS).is_dir()


@dataclass(frozen=True, slots=True)
class Masks:
    """See `masks`."""

    path: Path
    images: Path
    masks: Path
    name: str = "masks"

    def listing(self) -> Listing:
        """Returns the images that have a mask, and refuses the others; a key is the path below `images`."""
        for folder in (self.images, self.masks):
            if not folder.is_dir():
                raise SourceError(f"{folder} is not a folder: give one with {IMAGES} and {MASKS}, or --option masks=")
        if self.images == self.masks:
            raise UsageError(f"{self.images} is the folder of the images and of the masks: give two")
        refused = Refused()
        of_stem: dict[str, list[str]] = defaultdict(list)
        for name in images_below(self.images, refused):
            of_stem[_stem(name)].append(name)
        have_masks = {_stem(name): name for name in images_below(self.masks, refused) if name.lower().endswith(_SUFFIX)}
        listed = Listed[str](self.images, refused=refused)
        for number, (stem, names) in enumerate(sorted(of_stem.items()), start=1):
            if stem not in have_masks or len(names) > 1:
                problem = f"{len(names)} images share its mask" if len(names) > 1 else f"it has no mask {stem}{_SUFFIX}"
                listed.refused.append((names[0], f"{self.images}/{names[0]}: {problem} in {self.masks}"))
            else:
                listed.add(number, names[0], have_masks[stem])
        lone = sorted(have_masks.keys() - of_stem.keys())
        listed.refused += [(stem, f"{self.masks}/{stem}{_SUFFIX}: it has no image in {self.images}") for stem in lone]
        listed.refuse_names()
        if not listed.names and not listed.refused:
            raise SourceError(f"{self.images} has no images")
        return self._pairs(image_file_listing(self.images, listed, None, ()), listed.labels)

    def _pairs(self, images: Listing, masks: list[str]) -> Listing:
        """Returns the listing of images with their masks, whose sizes and versions are those of both files."""
        num_bytes, versions = file_states(self.masks, Keys.of(masks))
        assert images.versions is not None  # they are files
        changed = map(version_of, images.versions.tolist(), versions.tolist())
        names = np.empty(len(masks), dtype=object)
        names[:] = [name.encode(errors="surrogateescape") for name in masks]
        return replace(
            images,
            schema=Schema.of({"image": "bytes", "mask": "bytes"}),
            num_bytes=images.num_bytes + num_bytes,
            versions=np.fromiter(changed, "int64", len(masks)),
            columns={_MASK_NAME: names},
            image_fields=("image", "mask"),
        )

    def reader(self, listing: Listing) -> Prefetcher[Sample]:
        """Gives a function that reads one image with its mask."""
        keys, names = list(listing.keys), listing.columns[_MASK_NAME]

        def read(index: int) -> Sample:
            image = read_file(path_below(str(self.images), keys[index]))
            mask = read_file(path_below(str(self.masks), names[index].decode(errors="surrogateescape")))
            return Sample(keys[index], {"image": image, "mask": mask})

        return Prefetcher(read, listing.num_bytes.tolist(), len(listing))


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))
