"""A data set that Hugging Face's `save_to_disk` has written: a folder of Arrow files with `state.json`.

A file is a stream of record batches, of which a worker holds one at a time; it is checked before a value is taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlio.dataset.schema import Sample
from dlio.errors import SourceError, UsageError
from dlio.formats.payloads.arrow import ArrowColumn, load_pyarrow, reading
from dlio.io.files import read_regular
from dlio.io.random_access import RandomAccessFile
from dlio.pack.listing.arrow_rows import Columns, arrow_listing, arrow_reader
from dlio.pack.listing.base import Listing

if TYPE_CHECKING:
    import pyarrow

STATE = "state.json"
_SPLITS = "dataset_dict.json"
_MAX_STATE_BYTES = 16 << 20


def arrow(path: str | Path, columns: str = "") -> Arrow:
    """Returns the rows of a data set that was saved to the folder `path`.

    Args:
        path: the folder.
        columns: the fields to take, with commas between them; by default all.
    """
    return Arrow(Path(path).absolute(), tuple(filter(None, columns.split(","))))


open_source = arrow


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with a saved data set, or with several splits of one."""
    return (path / STATE).is_file() or (path / _SPLITS).is_file()


@dataclass(frozen=True, slots=True)
class Arrow:
    """See `arrow`."""

    path: Path
    columns: tuple[str, ...] = ()
    name: str = "arrow"

    def _files(self) -> list[Path]:
        if (self.path / _SPLITS).is_file():
            raise UsageError(f"{self.path} holds several splits: give the folder of one, such as {self.path}/train")
        path = self.path / STATE
        try:
            state = json.loads(read_regular(path, _MAX_STATE_BYTES))
            names = [str(entry["filename"]) for entry in state["_data_files"]]
            if state.get("_indices_data_files"):
                raise ValueError("rows chosen by an index: save the result of flatten_indices()")
            if any("/" in name or "\0" in name for name in names):
                raise ValueError("a file in another folder")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"{path}: it is not the state of a saved data set: {error!r}") from error
        return [self.path / name for name in names]

    def listing(self) -> Listing:
        """Returns all rows in order."""
        return arrow_listing(self.path, self._files(), _Rows, self.columns)

    def reader(self, listing: Listing) -> AbstractContextManager[Callable[[int], Sample]]:
        """Gives a function that reads one row."""
        return arrow_reader(self._files(), _Rows, listing)


class _Rows:
    """The rows of a file, record batch by record batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        RandomAccessFile(path).close()  # so that an unreadable file is not reported as damaged
        with reading(path):
            self._file = load_pyarrow().OSFile(str(path))
            self.schema = load_pyarrow().ipc.read_schema(self._file)

    def _mapped(self) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
        """Yields the place of each batch, and the batch, mapped into memory: only what is looked at is read."""
        with reading(self._path), load_pyarrow().memory_map(str(self._path)) as file:
            messages = load_pyarrow().ipc.MessageReader.open_stream(file)
            messages.read_next_message()  # the schema
            while True:
                place = file.tell()
                try:
                    message = messages.read_next_message()
                except StopIteration:
                    return
                yield place, self._batch(message)

    def _batch(self, message: pyarrow.Message) -> pyarrow.RecordBatch:
        if message.type != "record batch":
            raise SourceError(f"{self._path}: a {message.type}, expected rows: save the data set without dictionaries")
        if _is_compressed(message.metadata.to_pybytes()):
            raise SourceError(f"{self._path}: its rows are compressed: save the data set without compression")
        return load_pyarrow().ipc.read_record_batch(message, self.schema)

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Yields offset, rows and bytes of each record batch."""
        return ((place, batch.num_rows, batch.get_total_buffer_size()) for place, batch in self._mapped())

    def names(self, image: ArrowColumn) -> Iterator[pyarrow.Array]:
        """Yields the paths of the images, a batch at a time."""
        for _, batch in self._mapped():
            found = image.names(batch)
            found.validate(full=True)
            yield found

    def batches(self, place: int, taken: Columns) -> Iterator[pyarrow.RecordBatch]:
        """Yields the record batch at an offset."""
        with reading(self._path):
            self._file.seek(place)
            batch = self._batch(load_pyarrow().ipc.read_message(self._file))
            batch.validate(full=True)
        yield batch

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _is_compressed(metadata: bytes) -> bool:
    """Returns whether a record batch's buffers are compressed: a few bytes may then unpack to any number.

    Arrow's `Message.fbs`: field 2 of a message is the batch, and field 3 of the batch describes the compression.
    """
    message = int.from_bytes(metadata[:4], "little")
    at = message + _entry(metadata, message, 2)
    batch = at + int.from_bytes(metadata[at : at + 4], "little")
    return _entry(metadata, batch, 3) != 0


def _entry(data: bytes, table: int, field: int) -> int:
    """Returns where a field of a table of FlatBuffers lies, from the table's begin; 0 if it is not there."""
    entries = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    num_bytes, at = int.from_bytes(data[entries : entries + 2], "little"), 4 + 2 * field
    return int.from_bytes(data[entries + at : entries + at + 2], "little") if at < num_bytes else 0
