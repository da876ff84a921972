"""Caffe's list of images: `path label` a line, split at the last space (caffe `tools/convert_imageset.cpp`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset.schema import Sample
from dlio.pack.listing.base import Listing
from dlio.pack.listing.image_files import image_file_listing, image_file_reader
from dlio.pack.listing.lists import Listed, read_lines
from dlio.pack.sources._looks import CAFFE_LINE


def caffe_list(path: str | Path, root: str | Path | None = None) -> CaffeList:
    """Returns the images that a list names, by paths below `root` (default: the folder of the list).

    As in Caffe, `root` stands before every path, one that begins with a slash too.
    """
    path = Path(path).absolute()
    return CaffeList(path, Path(root).absolute() if root is not None else path.parent, root is not None)


open_source = caffe_list


@dataclass(frozen=True, slots=True)
class CaffeList:
    """See `caffe_list`; `all_below_root` takes absolute paths for such below `root`."""

    path: Path
    root: Path
    all_below_root: bool
    name: str = "caffe-list"

    def listing(self) -> Listing:
        """Returns the images in the order of the list, with int64 labels."""
        import numpy as np

        listed = Listed(self.path)
        for number, line in enumerate(read_lines(self.path), start=1):
            match = CAFFE_LINE.fullmatch(line)
            if match is None:
                listed.refuse_line(number, f"expected a path, a space, and a whole number: {line!r}")
                continue
            listed.add(number, match[1].lstrip("/") if self.all_below_root else match[1], int(match[2]))
        listed.refuse_names()
        labels = np.array(listed.labels, dtype="int64")
        return image_file_listing(self.root, listed, labels, ())

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives what reads one image with its label."""
        return image_file_reader(self.root, listing)
