"""Caffe's list of images, with lines `path label`, split at the last space (caffe `tools/convert_imageset.cpp`)."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np

from dlio.pack.listing.base import Listing
from dlio.pack.listing.file_sets import begins_with
from dlio.pack.listing.image_files import ImageFiles, image_file_listing
from dlio.pack.listing.lists import Listed, ListPath, list_path, read_lines, root_of

_LINE = re.compile(r"(.+) ([+-]?[0-9]{1,10})", re.ASCII)


def caffe_list(path: str | Path, root: str | Path | None = None) -> ImageFiles:
    """Returns the images that a list names, by paths below `root`, a folder or a URL (default: the folder of the list).

    As in Caffe, `root` precedes every path, even one that begins with a slash.
    """
    file = list_path(path)
    folder = root_of(file, root)
    return ImageFiles("caffe-list", file, folder, partial(_listing, file, folder, all_below_root=root is not None))


open_source = caffe_list
IS_GENERAL = True


def recognises(path: Path) -> bool:
    """Returns whether `path` is a .txt file whose first line ends with a space and a whole number."""
    first = begins_with(path, 1 << 16).partition(b"\n")[0] if path.suffix == ".txt" else b""
    return _LINE.fullmatch(first.decode(errors="replace").rstrip("\r")) is not None


def _listing(path: ListPath, root: str | Path, *, all_below_root: bool) -> Listing:
    """Returns the images in the order of the list, with int64 labels; absolute paths may be paths below the root."""
    listed = Listed[int](path)
    for number, line in enumerate(read_lines(path), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            listed.refuse_line(number, f"expected a path, a space, and a whole number: {line!r}")
            continue
        listed.add(number, match[1].lstrip("/") if all_below_root else match[1], int(match[2]))
    listed.refuse_names()
    return image_file_listing(root, listed, np.array(listed.labels, dtype="int64"), ())
