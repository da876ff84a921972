"""Caffe's list of images, with lines `path label`, split at the last space (caffe `tools/convert_imageset.cpp`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dlio.dataset.schema import Sample
from dlio.pack.listing.base import Listing, Numbers
from dlio.pack.listing.image_files import file_sizes, image_file_listing, listed_reader
from dlio.pack.listing.lists import Listed, ListPath, list_path, read_lines, root_of

_LINE = re.compile(r"(.+) ([+-]?[0-9]{1,10})", re.ASCII)


def caffe_list(path: str | Path, root: str | Path | None = None) -> CaffeList:
    """Returns the images that a list names, by paths below `root`, a folder or a URL (default: the folder of the list).

    As in Caffe, `root` precedes every path, even one that begins with a slash.
    """
    file = list_path(path)
    return CaffeList(file, root_of(file, root), root is not None)


open_source = caffe_list
IS_GENERAL = True


def recognises(path: Path) -> bool:
    """Returns whether `path` is a .txt file whose first line ends with a space and a whole number."""
    if path.suffix != ".txt" or not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(1 << 16).decode(errors="replace")
    return _LINE.fullmatch(first.rstrip("\r\n")) is not None


@dataclass(frozen=True, slots=True)
class CaffeList:
    """See `caffe_list`; `all_below_root` reads absolute paths as paths below `root`."""

    path: ListPath
    root: str | Path = field(repr=False)  # a URL may hold a password
    all_below_root: bool
    name: str = "caffe-list"

    @property
    def folder(self) -> str | Path:
        """The folder below which keys are paths; see `FileSource`."""
        return self.root

    def listing(self) -> Listing:
        """Returns the images in the order of the list, with int64 labels."""
        listed = Listed[int](self.path)
        for number, line in enumerate(read_lines(self.path), start=1):
            match = _LINE.fullmatch(line)
            if match is None:
                listed.refuse_line(number, f"expected a path, a space, and a whole number: {line!r}")
                continue
            listed.add(number, match[1].lstrip("/") if self.all_below_root else match[1], int(match[2]))
        listed.refuse_names()
        labels = np.array(listed.labels, dtype="int64")
        return image_file_listing(self.root, listed, labels, ())

    def sizes(self, listing: Listing) -> Numbers | None:
        """Returns the exact size of each image, in bytes."""
        return file_sizes(self.root, listing.keys)

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image with its label."""
        return listed_reader(self.root, listing)
