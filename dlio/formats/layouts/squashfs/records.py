"""Which files of an image are a record: in dlio's images by their inode numbers, in others every image is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlio.dataset.schema import Array, Sample, Schema
from dlio.errors import CorruptRecordError
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.formats.layouts.squashfs.metadata import gather
from dlio.formats.layouts.squashfs.tree import Files
from dlio.formats.payloads import npy, paths
from dlio.formats.payloads.members import decode
from dlio.io.random_access import Numbers

_LOWER = 0x20202020  # of four letters


@dataclass(frozen=True, slots=True)
class HiddenFiles:
    """The files by which an image describes itself; see `payloads/paths.py`.

    Attributes:
        image: the image.
        numbers: the number of each file, by the end of its name.
        description: what they say of the samples.
    """

    image: Image
    numbers: dict[bytes, int]
    description: paths.Description

    @classmethod
    def of(cls, image: Image) -> HiddenFiles | None:
        """Returns those of an image, None if another tool made it.

        Raises:
            ValueError: they are damaged.
        """
        files = image.files
        names = {files.name(index): index for index in np.flatnonzero(files.folder == 0).tolist()}
        stems = [name.removesuffix(paths.DESCRIPTION) for name in names if name.startswith(paths.PREFIX)]
        stems = [stem for stem in stems if stem + paths.DESCRIPTION in names]
        if len(stems) != 1:
            return None
        numbers = {name.removeprefix(stems[0]): index for name, index in names.items() if name.startswith(stems[0])}
        return cls(image, numbers, paths.Description.parse(image.read(numbers[paths.DESCRIPTION], None)))

    def read(self, suffix: bytes, record: int | None = None) -> bytes:
        """Returns the content of the file whose name ends so; raises ValueError if there is none."""
        if suffix not in self.numbers:
            raise ValueError(f"it has no file {suffix.decode()!r} at the end of {paths.PREFIX.decode()!r}")
        return self.image.read(self.numbers[suffix], record)


class OwnRecords:
    """The records of an image that dlio made: files with the inode numbers from 1 on."""

    def __init__(self, image: Image, hidden: HiddenFiles, schema: Schema) -> None:
        """Finds the files of each record; raises ValueError if the image is damaged."""
        self._image, self._hidden, self._schema = image, hidden, schema
        self._kept = paths.file_schema(schema)
        self._names = paths.column_names(schema)
        self._columns: dict[str, Array] = {}
        files, count = image.files, hidden.description.num_samples
        if not 0 <= count <= len(files):
            raise ValueError(f"it claims {count} samples, expected at most {len(files)}")
        counts = np.full(count, len(self._kept)) if paths.COUNTS not in hidden.numbers else self._counts(count)
        self._firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        order = np.argsort(files.number, kind="stable")
        self._order = order[: int(self._firsts[-1])]
        if not np.array_equal(files.number[self._order], np.arange(1, self._firsts[-1] + 1)):
            raise ValueError(f"expected the inodes 1 to {self._firsts[-1]} of its samples, some are missing")
        starts, stops = files.start[order], (files.start + files.size)[order]
        if not files.is_stored[order].all() or (starts[1:] < stops[:-1]).any():
            raise ValueError("expected files stored as they are, in the order of their inodes, found some that overlap")

    def _counts(self, count: int) -> Numbers:
        counts = npy.decode(self._hidden.read(paths.COUNTS))
        if counts.shape != (count,) or counts.dtype != np.int64 or counts.min(initial=1) < 1:
            raise ValueError("the numbers of its samples' files are damaged")
        if counts.max(initial=0) > len(self._image.files) or counts.sum() > len(self._image.files):
            raise ValueError("its samples have more files than the image")
        return counts

    def __len__(self) -> int:
        return len(self._firsts) - 1

    def files(self, index: int) -> Sequence[int]:
        """Returns the numbers of a record's files."""
        found: list[int] = self._order[self._firsts[index] : self._firsts[index + 1]].tolist()
        return found

    def column_of_files(self, name: str) -> Numbers | None:
        """Returns the number of each record's file with the field `name`, None if it varies or has none."""
        if name not in self._kept or len(self._order) != len(self) * len(self._kept):
            return None
        return self._order[list(self._kept).index(name) :: len(self._kept)]

    def read(self, index: int) -> Sample:
        """Returns a record; raises ValueError if it is damaged."""
        found = self.files(index)
        key, extensions = paths.split([self._image.files.path(file) for file in found], self._kept)
        contents = {
            extension: memoryview(self._image.read(file, index))
            for extension, file in zip(extensions, found, strict=True)
        }
        rows = {name: self._column(name, index)[index] for name in self._names}
        return paths.with_columns(Sample(key, decode(contents, self._kept)), rows, self._schema)

    def _column(self, name: str, record: int) -> Array:
        if name not in self._columns:
            data = self._hidden.read(b".%b.npy" % name.encode(), record)
            self._columns[name] = paths.read_column(data, name, self._schema, len(self))
        return self._columns[name]


class FolderRecords:
    """The records of an image of another tool: its images in the order of their data, whose folders are classes."""

    def __init__(self, image: Image, schema: Schema) -> None:
        """Finds the images; raises CorruptRecordError if the schema is not one of images with a class."""
        if set(schema.types().items()) - {("image", "bytes"), ("label", "int64")} or "image" not in schema:
            problem = f"it has only images and class folders, without a description by dlio: not {schema}"
            raise CorruptRecordError(image.file.path, problem)
        self._image, self._schema = image, schema
        self._order = image_files(image)
        self._labels: dict[int, int] = {}
        self._classes = {name: number for number, name in enumerate(schema.class_names or class_folders(image))}

    def __len__(self) -> int:
        return len(self._order)

    def files(self, index: int) -> Sequence[int]:
        """Returns the number of the record's file."""
        return (int(self._order[index]),)

    def column_of_files(self, name: str) -> Numbers | None:
        """Returns the numbers of all images for the field `image`."""
        return self._order if name == "image" else None

    def read(self, index: int) -> Sample:
        """Returns a record; raises ValueError if its folder is no class."""
        (file,) = self.files(index)
        files = self._image.files
        fields: dict[str, Any] = {"image": self._image.read(file, index)}
        if "label" in self._schema:
            folder = int(files.folder[file])
            if folder not in self._labels:
                self._labels[folder] = self._label(files.folder_path(folder))
            fields["label"] = self._labels[folder]
        key = files.path(file).decode(errors="backslashreplace")
        return Sample(key, {name: fields[name] for name in self._schema})

    def _label(self, folder: bytes) -> int:
        """Returns the class of a folder: its first part that is the name of one."""
        for part in folder.split(b"/"):
            if (number := self._classes.get(part.decode(errors="backslashreplace"))) is not None:
                return number + self._schema.label_offset
        raise ValueError(f"the folder {folder.decode(errors='backslashreplace')!r} is not one of its classes")


def image_files(image: Image) -> Numbers:
    """Returns the numbers of the files with an image's extension, in the order of their data."""
    files = image.files
    found = np.flatnonzero(_end_in(files, paths.IMAGE_EXTENSIONS))
    shared = ~files.is_stored & (files.size < files.block_bytes) & (files.fragment >= 0)
    starts = files.fragments[np.where(shared, files.fragment, 0), 0] if shared.any() else files.start
    places = np.where(shared, starts, files.start)
    if (np.diff(places[found]) > 0).all():
        return found
    order: Numbers = found[np.lexsort((files.number[found], files.offset[found], places[found]))]
    return order


def _end_in(files: Files, extensions: Sequence[str]) -> NDArray[np.bool_]:
    """Returns which files' names end in one of `extensions`, whatever their case."""
    stream, ends = np.frombuffer(files.names, np.uint8), files.name_at + files.name_bytes
    found, last = np.zeros(len(files), np.bool_), gather(stream, ends - 4, "<u4") | _LOWER
    for extension in map(str.encode, extensions):  # of 4 or 5 letters
        same = (last == int.from_bytes(extension[-4:], "little") | _LOWER) & (files.name_bytes >= len(extension))
        rows = np.flatnonzero(same)
        found[rows] |= stream[ends[rows] - len(extension)] == ord(".")
    return found


def class_folders(image: Image) -> tuple[str, ...]:
    """Returns the first folders, below the deepest one that holds all images, that hold images; sorted."""
    files = image.files
    held = np.unique(files.folder[_end_in(files, paths.IMAGE_EXTENSIONS)])
    folders = [files.folder_path(folder) for folder in held.tolist()]
    parts = [folder.split(b"/")[:-1] for folder in folders]
    shared = 0
    while parts and all(len(each) > shared + 1 for each in parts) and len({each[shared] for each in parts}) == 1:
        shared += 1
    names = {each[shared] for each in parts if len(each) > shared}
    return tuple(sorted(name.decode(errors="backslashreplace") for name in names))
