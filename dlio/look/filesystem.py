"""A packed data set as a read-only file system of fsspec: `dlio://DATASET/KEY` is the file of a sample.

    import fsspec

    with fsspec.open("dlio:///scratch/packed/cat/0001.jpg") as file: ...
    fsspec.filesystem("dlio", dataset="s3://bucket/packed").cat("cat/0001.jpg")

fsspec finds it by its name once dlio is installed, so pandas, DuckDB, zarr and others take such paths. A file holds one
field of a sample: `image`, or the only one of bytes, or the option `field`.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from dlio.codecs.decode_ready import restored
from dlio.dataset.bulk.values import large_field
from dlio.dataset.manifest import NAME
from dlio.dataset.sample_table import small_bytes
from dlio.errors import DataError, UsageError, missing_package
from dlio.io.files import closed_on_error
from dlio.loaders.dataset import PackedSamples

try:
    from fsspec.spec import AbstractFileSystem
except ModuleNotFoundError as error:
    raise missing_package("fsspec", "remote", "dlio.look.filesystem") from error

_IMAGE = "image"
Tree = dict[str, dict[str, int | None]]  # the entries of each folder: a sample's number, or None for a folder


class DlioFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Data sets as folders of files; see the module. Safe for several threads, picklable, and safe across fork.

    The names of a data set are held in memory from the first access on, about 200 bytes a sample. Each sample that is
    read is compared with its checksum. What would write raises OSError.
    """

    protocol = "dlio"
    root_marker = ""

    def __init__(self, dataset: str | None = None, field: str | None = None, **options: Any) -> None:
        """Opens nothing yet.

        Args:
            dataset: the folder or URL of a data set, whose keys paths are then; by default a path begins with the
                folder of its data set, which holds `manifest.jsonl`.
            field: the field that files hold, of bytes or text; by default `image`, or the only one of bytes.
            **options: fsspec's own.
        """
        super().__init__(dataset=dataset, field=field, **options)
        self._dataset, self._field = dataset, field
        self._opened: dict[str, _Files] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": {}}

    def _found(self, path: str) -> tuple[str, _Files, str]:
        """Returns the data set that a path is in, its files, and the path below it; raises FileNotFoundError."""
        path = self._strip_protocol(path)
        if self._dataset is not None:
            return "", self._files(self._dataset), path
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            root = "/".join(parts[:count])
            if root in self._opened or Path(root or "/", NAME).is_file():
                return root, self._files(root), "/".join(parts[count:])
        raise FileNotFoundError(errno.ENOENT, "no folder of this path holds a data set of dlio", path)

    def _files(self, root: str) -> _Files:
        if root not in self._opened:
            samples = PackedSamples(root or "/")
            with closed_on_error(samples):
                self._opened[root] = _Files(samples, self._field)
        return self._opened[root]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Returns name, type and size in bytes of a file or folder; raises FileNotFoundError."""
        root, files, below = self._found(path)
        number = None if below in files.tree else files.number(below)
        return files.entry("/".join(filter(None, (root, below))), number)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Returns the entries of a folder, or a file itself, as `info` or by name; raises FileNotFoundError."""
        root, files, below = self._found(path)
        if below not in files.tree:
            found = self.info(path)
            return [found if detail else found["name"]]
        names = {"/".join(filter(None, (root, below, name))): number for name, number in files.tree[below].items()}
        return [files.entry(name, number) for name, number in names.items()] if detail else list(names)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _Content:
        if mode != "rb":
            self._refuse(path)
        _, files, below = self._found(path)
        if below in files.tree:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return _Content(files.read(files.number(below)))

    def _refuse(self, path: object = "", *_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, "data sets of dlio are read-only", str(path))

    mkdir = makedirs = rmdir = _rm = rm_file = cp_file = touch = pipe_file = put_file = _refuse

    def created(self, path: str) -> NoReturn:
        """Raises NotImplementedError: samples have no times."""
        raise NotImplementedError("samples have no times")

    modified = created

    def invalidate_cache(self, path: str | None = None) -> None:
        """Closes all data sets, so that they are opened again."""
        for files in self._opened.values():
            files.samples.close()
        self._opened.clear()


class _Content(io.BytesIO):
    """The content of a file; fsspec asks files for their size, to read their last bytes."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.getbuffer().nbytes


class _Files:
    """The files of one data set."""

    def __init__(self, samples: PackedSamples, field: str | None) -> None:
        self.samples, self._field = samples, _field_of(samples, field)
        self.tree: Tree = {"": {}}
        number = 0
        for shard in range(len(samples.manifest.shards)):
            with samples.opened.pool.shard(shard) as opened:
                keys = opened.keys()
            for key in keys:
                self._add(key, number)
                number += 1

    def _add(self, key: str, number: int) -> None:
        folder, _, name = key.rpartition("/")
        if folder not in self.tree:
            self._add_folder(folder, key)
        if (
            key.startswith("/")
            or not name
            or name in (".", "..")
            or self.tree[folder].setdefault(name, number) != number
        ):
            raise self._unfit(key)

    def _add_folder(self, folder: str, key: str) -> None:
        above, _, name = folder.rpartition("/")
        if not name or name in (".", ".."):
            raise self._unfit(key)
        if above not in self.tree:
            self._add_folder(above, key)
        if self.tree[above].setdefault(name, None) is not None:
            raise self._unfit(key)
        self.tree[folder] = {}

    def _unfit(self, key: str) -> UsageError:
        return UsageError(f"{self.samples.manifest.root}: the key {key!r} cannot be a path among the others")

    def number(self, path: str) -> int:
        """Returns the sample of a file; raises FileNotFoundError."""
        folder, _, name = path.rpartition("/")
        number = self.tree.get(folder, {}).get(name)
        if number is None:
            raise FileNotFoundError(errno.ENOENT, f"{self.samples.manifest.root} has no such sample", path)
        return number

    def entry(self, name: str, number: int | None) -> dict[str, Any]:
        """Returns what fsspec says of a file, or of a folder without a number."""
        if number is None:
            return {"name": name, "size": 0, "type": "directory"}
        return {"name": name, "size": self.size(number), "type": "file"}

    def read(self, number: int) -> bytes:
        """Returns the content of a file; of a decode-ready record the JPEG that it was made of."""
        [sample] = self.samples.read([number])
        try:
            value = restored(sample.fields[self._field])
        except DataError as error:
            raise self.samples.damage(number, str(error)) from error
        return value.encode() if isinstance(value, str) else bytes(value)

    def size(self, number: int) -> int:
        """Returns the size of a file in bytes: from the table if all else is in it, too, else of what is read.

        A file of a shard with decode-ready records is read, since the table has the sizes of records.
        """
        schema = self.samples.manifest.schema
        shard, record = self.samples.numbering.locate(number)
        if self.samples.manifest.shards[shard].decode_ready is not None:
            return len(self.read(number))
        with self.samples.opened.pool.shard(shard) as opened:
            sizes = opened.sizes() if large_field(schema) == self._field else None
        if sizes is None:
            return len(self.read(number))
        return int(sizes[record]) - small_bytes(schema)


def _field_of(samples: PackedSamples, field: str | None) -> str:
    """Returns the field that files hold; raises UsageError."""
    schema: Mapping[str, Any] = samples.manifest.schema
    held = [name for name in schema if str(schema[name]) in ("bytes", "str")]
    of_bytes = [name for name in held if str(schema[name]) == "bytes"]
    if field is None:
        field = _IMAGE if _IMAGE in held else of_bytes[0] if len(of_bytes) == 1 else None
    if field not in held:
        problem = "has no field that files could hold" if not held else f"give field=, one of {', '.join(held)}"
        raise UsageError(f"{samples.manifest.root}: {problem}: its fields are {samples.manifest.schema}")
    return field
