"""MXNet's list of images, with lines `index TAB label [TAB label ...] TAB path` (mxnet `tools/im2rec.py`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from dlio.dataset.schema import Sample
from dlio.pack.listing.base import Column, Listing, Numbers
from dlio.pack.listing.image_files import file_sizes, image_file_listing, listed_reader
from dlio.pack.listing.labels import AUTO, LabelColumn, check_kind, stack
from dlio.pack.listing.lists import Listed, ListPath, label_columns, list_path, read_lines, root_of


def lst_file(path: str | Path, root: str | Path | None = None, labels: str = AUTO) -> LstFile:
    """Returns the images that a `.lst` file names, by paths below `root` (default: the folder of the list).

    Both may be URLs. With `labels="numbers"` single labels are measurements, float32; by default whole numbers are
    class indices.
    """
    file = list_path(path)
    check_kind(labels)
    return LstFile(file, root_of(file, root), labels)


open_source = lst_file


def recognises(path: Path) -> bool:
    """Returns whether `path` is a .lst file."""
    return path.suffix == ".lst" and path.is_file()


@dataclass(frozen=True, slots=True)
class LstFile:
    """See `lst_file`."""

    path: ListPath
    root: str | Path = field(repr=False)  # a URL may hold a password
    labels: str = AUTO
    name: str = "lst"

    @property
    def folder(self) -> str | Path:
        """The folder below which keys are paths; see `FileSource`."""
        return self.root

    def listing(self) -> Listing:
        """Returns the images in the order of the list; labels are int64 if all are whole, else float32."""
        listed = Listed[tuple[str, ...]](self.path)
        for number, line in enumerate(read_lines(self.path), start=1):
            cells = line.split("\t")
            labels = tuple(cells[1:-1])
            if not labels:
                problem = f"{len(cells)} columns, expected index, label and path with tabs between"
                listed.refuse_line(number, problem)
            elif listed.labels and len(labels) != len(listed.labels[0]):
                listed.refuse_line(number, f"{len(labels)} labels, the lines before have {len(listed.labels[0])}")
            else:
                listed.add(number, cells[-1], labels)
        listed.refuse_names()
        num_columns = len(listed.labels[0]) if listed.labels else 1
        columns = label_columns(listed, [""] * num_columns)
        values, names = self._values(columns[0]) if len(columns) == 1 else (stack(columns), ())
        return image_file_listing(self.root, listed, values[listed.refuse(columns[0].refused)], names)

    def _values(self, column: LabelColumn) -> tuple[Column, tuple[str, ...]]:
        return (column.numbers(), ()) if self.labels == AUTO else column.labels(self.labels)

    def sizes(self, listing: Listing) -> Numbers | None:
        """Returns the exact size of each image, in bytes."""
        return file_sizes(self.root, listing.keys)

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one image with its label or labels."""
        return listed_reader(self.root, listing)
