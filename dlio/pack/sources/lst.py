"""MXNet's list of images: `index TAB label [TAB label ...] TAB path` a line (mxnet `tools/im2rec.py`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dlio.errors import SourceError
from dlio.pack.image_files import Listed, image_file_listing, image_file_reader, read_lines
from dlio.pack.labels import LabelColumn, stack
from dlio.pack.listing import Listing
from dlio.sample import Sample


def lst_file(path: str | Path, root: str | Path | None = None) -> LstFile:
    """Returns the images that a `.lst` file names, by paths below `root` (default: the folder of the list)."""
    path = Path(path).absolute()
    return LstFile(path, Path(root).absolute() if root is not None else path.parent)


def recognises(path: Path) -> bool:
    """Tells whether `path` is a file whose name ends with .lst."""
    return path.suffix == ".lst" and path.is_file()


open_source = lst_file


@dataclass(frozen=True, slots=True)
class LstFile:
    """See `lst_file`."""

    path: Path
    root: Path
    name: str = "lst"

    def listing(self) -> Listing:
        """Returns the images in the order of the list; labels are int64 where all are whole, else float32."""
        keys: list[str] = []
        rows: list[list[str]] = []
        for number, line in enumerate(read_lines(self.path), start=1):
            columns = line.split("\t")
            if len(columns) < 3:
                problem = f"{len(columns)} columns, expected index, label and path with tabs between"
                raise SourceError(f"{self.path}, line {number}: {problem}")
            keys.append(columns[-1])
            rows.append(columns[1:-1])
            if len(rows[-1]) != len(rows[0]):
                problem = f"{len(rows[-1])} labels, the lines before have {len(rows[0])}"
                raise SourceError(f"{self.path}, line {number}: {problem}")
        lines = range(1, len(rows) + 1)
        labels = [LabelColumn(self.path, lines, texts) for texts in zip(*rows, strict=True)]
        values = labels[0].numbers() if len(labels) == 1 else stack(labels)
        return image_file_listing(self.root, Listed(self.path, keys, lines), values, ())

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives what reads one image with its label or labels."""
        return image_file_reader(self.root, listing)
