"""MXNet's list of images, with lines `index TAB label [TAB label ...] TAB path` (mxnet `tools/im2rec.py`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dlio.io.sizes import counted
from dlio.pack.listing.base import Column, Listing
from dlio.pack.listing.image_files import ImageFiles, image_file_listing
from dlio.pack.listing.labels import AUTO, check_kind, stack
from dlio.pack.listing.lists import Listed, ListPath, label_columns, list_path, read_lines, root_of


def lst_file(path: str | Path, root: str | Path | None = None, labels: str = AUTO) -> ImageFiles:
    """Returns the images that a `.lst` file names, by paths below `root` (default: the folder of the list).

    Both may be URLs. With `labels="numbers"` single labels are measurements, float32; by default whole numbers are
    class indices.
    """
    file = list_path(path)
    check_kind(labels)
    folder = root_of(file, root)
    return ImageFiles("lst", file, folder, partial(_listing, file, folder, labels))


open_source = lst_file


def recognises(path: Path) -> bool:
    """Returns whether `path` is a .lst file."""
    return path.suffix == ".lst" and path.is_file()


def _listing(path: ListPath, root: str | Path, kind: str) -> Listing:
    """Returns the images in the order of the list; labels are int64 if all are whole, else float32."""
    listed = Listed[tuple[str, ...]](path)
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        labels = tuple(cells[1:-1])
        if not labels:
            problem = f"{counted(len(cells), 'column')}, expected index, label and path with tabs between"
            listed.refuse_line(number, problem)
        elif listed.labels and len(labels) != len(listed.labels[0]):
            listed.refuse_line(
                number, f"{counted(len(labels), 'label')}, the lines before have {len(listed.labels[0])}"
            )
        else:
            listed.add(number, cells[-1], labels)
    listed.refuse_names()
    columns = label_columns(listed, [""] * (len(listed.labels[0]) if listed.labels else 1))
    first, *others = columns
    names: tuple[str, ...] = ()
    if others:
        values: Column = stack(columns)
    elif kind == AUTO:
        values = first.numbers()
    else:
        values, names = first.labels(kind)
    return image_file_listing(root, listed, values[listed.refuse(first.refused)], names)
