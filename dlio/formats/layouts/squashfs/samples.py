"""Writing the files of samples into an image: all of it by one writer, or a part of it at a planned place."""

from __future__ import annotations

import io
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.schema import Array, Sample, Schema
from dlio.errors import SchemaError, SourceError, corrupt_errors
from dlio.formats import AppendFile
from dlio.formats.layouts.squashfs.tables import image_tables
from dlio.formats.payloads import members, npy, paths
from dlio.io.files import storage_errors
from dlio.io.random_access import Numbers

PLACE_BYTES = 64 << 10  # parts begin at multiples, so that no two workers write to one page of memory
PART_SUFFIX = ".files.npz"
_NO_END = 1 << 63


def is_single(schema: Schema) -> bool:
    """Returns whether each sample is one image's file, and small numbers in columns."""
    return paths.file_schema(schema).types() == {"image": "bytes"}


@dataclass(frozen=True, slots=True)
class Part:
    """The files of samples that were written at a place of an image.

    Attributes:
        start: where the first one begins, in bytes.
        paths: the path that each file should have.
        sizes: their sizes in bytes; int64 of shape (n,).
        digest: the digest of their bytes.
    """

    start: int
    paths: list[bytes]
    sizes: Numbers
    digest: str

    @property
    def stop(self) -> int:
        """Where the last one ends, in bytes."""
        return self.start + int(self.sizes.sum())

    def save(self) -> bytes:
        """Returns it as a file, without `start`."""
        out = io.BytesIO()
        names, digest = (np.frombuffer(text, np.uint8) for text in (b"\0".join(self.paths), self.digest.encode()))
        np.savez(out, paths=names, sizes=self.sizes, digest=digest)
        return out.getvalue()

    @classmethod
    def load(cls, path: Path, start: int) -> Part:
        """Returns what `save` gave; raises StorageError, CorruptRecordError."""
        kinds = ValueError, KeyError, EOFError, BadZipFile
        with corrupt_errors(path, "{}: remove it, and run the same command again", kinds=kinds):
            with storage_errors("read", path), np.load(path, allow_pickle=False) as found:
                sizes, text, digest = found["sizes"], bytes(found["paths"]), bytes(found["digest"]).decode()
            names = text.split(b"\0") if text else []
            if sizes.shape != (len(names),) or sizes.dtype != np.int64:
                raise ValueError(f"it has {len(names)} paths and sizes of the shape {sizes.shape}")
            return cls(start, names, sizes, digest)


class SampleFiles:
    """Appends the files of samples to an image, and collects their paths, places and sizes; used by one thread."""

    def __init__(self, stem: str, schema: Schema, file: AppendFile, path: Path, start: int, end: int = _NO_END) -> None:
        """Begins without samples.

        Args:
            stem: the shard's name.
            schema: the schema of the samples.
            file: the image, to which their bytes are appended.
            path: its path.
            start: where the first byte goes.
            end: where the place of these samples ends.
        """
        self._schema, self._stem = schema, paths.stem_of(stem)
        self._kept = paths.file_schema(schema)
        self._encode = members.encoder(self._kept)
        self._columns: dict[str, list[Any]] = {name: [] for name in paths.column_names(schema)}
        self._is_single = is_single(schema)
        self._names, self._paths = paths.Paths(), list[bytes]()
        self._starts, self._sizes, self._counts = array("q"), array("q"), array("q")
        self._file, self._path = file, path
        self._start = self._position = start
        self._end = end

    def write(self, sample: Sample) -> None:
        """Appends a sample.

        Raises:
            SchemaError: its key cannot be a path in this image.
            SourceError: there is no room for it at the place of these samples.
        """
        try:
            files = self._named(sample)
            self._check_room(sum(len(content) for _, content in files), sample.key)
            for path, _ in files:
                self._names.add(path)
        except ValueError as error:
            if isinstance(error, SourceError):
                raise
            advice = "give it another key, or use tfrecord, which holds any key"
            raise SchemaError(f"sample {sample.key!r}: squashfs cannot hold this key: {error}: {advice}") from None
        with storage_errors("write", self._path):
            for path, content in files:
                self._add(path, content)
        self._counts.append(len(files))
        for name, values in self._columns.items():
            values.append(sample.fields[name])

    def _check_room(self, num_bytes: int, key: str) -> None:
        if self._position + num_bytes > self._end:
            problem = "files are larger than when they were listed"
            raise SourceError(f"{key!r}: {problem}: run the same command again once no program writes to them")

    def _named(self, sample: Sample) -> list[tuple[bytes, bytes]]:
        """Returns path and content of each file of a sample, the paths not taken yet."""
        wanted = paths.path_of(sample.key)
        if self._is_single and paths.has_image_extension(wanted) and not self._names.has(wanted):
            return [(wanted, sample.fields["image"])]
        contents = self._encode(sample)
        for number in count(len(self._counts) - 1):
            path = paths.tagged(wanted, number) if number >= len(self._counts) else wanted
            files = paths.named(path, contents)
            if not any(self._names.has(path) for path, _ in files):
                break
        return files

    def _add(self, path: bytes, content: bytes) -> None:
        self._file.write(content)
        self._paths.append(path)
        self._starts.append(self._position)
        self._sizes.append(len(content))
        self._position += len(content)

    def write_group(self, group: SampleGroup) -> bool:
        """Appends images whose keys are paths of images; False if there is another sample."""
        if not self._is_single:
            return False
        images, added = group.pieces("image"), list(group.keys)
        num_bytes = int(images.bounds[-1] - images.bounds[0])
        if self._position + num_bytes > self._end or not (
            paths.are_paths(added) and paths.have_image_extensions(added) and self._names.add_all(added)
        ):
            return False
        with storage_errors("write", self._path):
            self._file.write(images.joined())
        self._note(added, images.sizes, self._position)
        self._position += num_bytes
        for name, values in self._columns.items():
            values += group.numbers(name).tolist()
        return True

    def _note(self, added: list[bytes], sizes: Numbers, start: int) -> None:
        self._paths += added
        self._starts.frombytes((start + np.cumsum(sizes) - sizes).tobytes())
        self._sizes.frombytes(sizes.tobytes())
        self._counts.frombytes(np.ones(len(sizes), np.int64).tobytes())

    def part(self, digest: str) -> Part:
        """Returns what was written, given the digest of its bytes."""
        return Part(self._start, self._paths, np.frombuffer(self._sizes, np.int64), digest)

    def adopt(self, parts: Sequence[Part], columns: Mapping[str, Array]) -> None:
        """Adds the files of samples that other writers have written, and the small numbers of all of them."""
        for part in parts:
            added = part.paths if self._names.add_all(part.paths) else [self._free(path) for path in part.paths]
            self._note(added, part.sizes, part.start)
        for name, values in self._columns.items():
            values += columns[name].tolist()

    def _free(self, wanted: bytes) -> bytes:
        """Returns a path like `wanted` that is not taken yet, and takes it."""
        path = wanted
        for number in count(len(self._paths)):
            if not self._names.has(path):
                break
            path = paths.tagged(wanted, number)
        self._names.add(path)
        return path

    def complete(self, table: bytes) -> tuple[bytes, list[bytes]]:
        """Appends the hidden files, and returns the superblock and the tables that follow."""
        for suffix, content in self._hidden(table).items():
            self._add(self._stem + suffix, content)
        starts, sizes = (np.frombuffer(values, np.int64) for values in (self._starts, self._sizes))
        return image_tables(self._paths, starts, sizes, self._position)

    def _hidden(self, table: bytes) -> dict[bytes, bytes]:
        """Returns the content of the files by which the image describes itself, by the end of their names."""
        counts = np.frombuffer(self._counts, np.int64)
        columns = {name: paths.column_file(values, name, self._schema) for name, values in self._columns.items()}
        found = {b".%b.npy" % name.encode(): npy.encode(values) for name, values in columns.items()}
        if len(set(counts.tolist()) - {len(self._kept)}):
            found[paths.COUNTS] = npy.encode(counts)
        firsts = [self._paths[first] for first in (np.cumsum(counts) - counts).tolist()]
        found[b".labels.csv"] = paths.labels_csv(firsts, columns)
        if table:
            found[paths.TABLE] = table
        found[paths.DESCRIPTION] = paths.Description(self._schema, len(counts)).to_bytes()
        return found
