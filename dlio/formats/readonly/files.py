"""Files as they lie in a folder, which `dlio index` lists: each sample is one file, such as an image, and its label.

    OUT/manifest.jsonl
    OUT/files -> ../photos           the folder of the files
    OUT/shard-000000.list            the files of a group: `layouts/file_list.py`
    OUT/shard-000000.samples.npz     the table of its samples

The first file of a shard is `shard-000000.files`: the bytes of its files, one after the other. Where the link is, that
file is not: the bytes are read from the files. A staged copy has the file, and no link.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError
from dlio.formats import Spans
from dlio.formats.layouts.file_list import FOLDER, FileList, large_field
from dlio.formats.layouts.file_list import SUFFIX as LIST
from dlio.formats.readonly import not_written
from dlio.io.random_access import Numbers, RandomAccessFile

SUFFIX = ".files"
refuses = not_written("loose files")


def lies_apart(path: Path) -> bool:
    """Returns whether the records of the shard at `path` are separate files; see `ApartFormat`."""
    return (path.parent / FOLDER).is_symlink()


class Reader:
    """Reads the samples of a group by number; thread-safe, opened again in every process."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema, self._image = schema, large_field(schema)
        self._files = FileList.read(path.with_suffix(LIST), schema)
        self._ends = np.cumsum(self._files.sizes)
        self._folder = str(path.parent / FOLDER)
        is_apart = lies_apart(path) or (self.checks_itself and not path.exists())  # of which there are no copies
        self._joined = None if is_apart else RandomAccessFile(path)
        expected = int(self._ends[-1]) if len(self) else 0
        if self._joined is not None and self._joined.num_bytes != expected:
            found = self._joined.num_bytes
            self._joined.close()
            raise CorruptRecordError(path, f"its list counts {expected:,} bytes, the file has {found:,}: restore both")

    @property
    def checks_itself(self) -> bool:
        """Whether the list has the time of each file, since there are no checksums of samples; see `SelfChecked`."""
        return bool(len(self._files.times))

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> Sample:
        """Returns record `index`.

        Raises:
            CorruptRecordError: its file is missing, or has changed since it was listed.
            StorageError: it cannot be read.
        """
        if self._joined is None:
            content = self._files.read_file(index, self._folder)
        else:
            content = self._joined.read(*self._extent(index), index)
        others = iter(self._files.columns)
        fields = {name: content if name == self._image else next(others)[index] for name in self._schema}
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in fields.items()}
        return Sample(self._files.name(index), plain)

    def _extent(self, index: int) -> tuple[int, int]:
        size = int(self._files.sizes[index])
        return int(self._ends[index]) - size, size

    def locate(self, index: int) -> tuple[Path, int | None]:
        """Returns the sample's own file, or the offset of its bytes in the shard's file."""
        if self._joined is None:
            return Path(self._folder, self._files.name(index)), None
        return self._joined.path, self._extent(index)[0]

    def spans(self, name: str, sizes: Numbers) -> Spans | None:
        """Returns where the images lie in the shard's file, None if they are separate files."""
        if self._joined is None:
            return None
        return Spans(self._joined, self._ends - self._files.sizes, self._ends, sizes * 0)

    def close(self) -> None:
        if self._joined is not None:
            self._joined.close()
