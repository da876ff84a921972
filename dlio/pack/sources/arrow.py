"""A data set that Hugging Face's `save_to_disk` has written: a folder of Arrow files with `state.json`.

A file is a stream of record batches, of which a worker holds one at a time; it is checked before a value is taken. The
listing reads the images' paths only. Nothing is mapped: a file that shrinks is then an error, and not a signal.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from typing import TYPE_CHECKING

from dlio.errors import CorruptRecordError, SourceError, UsageError
from dlio.formats.payloads.arrow import ArrowColumn, load_pyarrow, reading
from dlio.io.files import read_regular
from dlio.io.random_access import RandomAccessFile
from dlio.pack.listing.arrow_rows import ArrowFiles, Columns

if TYPE_CHECKING:
    import pyarrow

STATE = "state.json"
_SPLITS = "dataset_dict.json"
_MAX_STATE_BYTES = 16 << 20
_MARK, _FRAME_BYTES = 0xFFFFFFFF, 8  # before each message: this, and the size of its metadata


def arrow(path: str | Path, columns: str = "", split: str = "") -> ArrowFiles:
    """Returns the rows of a data set that was saved to the folder `path`.

    Args:
        path: the folder.
        columns: the fields to take, with commas between them; by default all.
        split: the split to take of several that were saved together, such as `train`.
    """
    folder = Path(path, split).absolute()
    return ArrowFiles("arrow", folder, partial(_files, folder), _Rows, tuple(filter(None, columns.split(","))))


open_source = arrow


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder with a saved data set, or with several splits of one."""
    return (path / STATE).is_file() or (path / _SPLITS).is_file()


def _files(folder: Path) -> list[Path]:
    if (folder / _SPLITS).is_file():
        raise UsageError(f"{folder} holds several splits: give one, such as --option split=train")
    if not (path := folder / STATE).exists():
        raise SourceError(f"{folder} has no {STATE}: give the folder that Dataset.save_to_disk has written")
    try:
        state = json.loads(read_regular(path, _MAX_STATE_BYTES))
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):
            raise ValueError("rows chosen by an index: save the result of flatten_indices()")
        if any("/" in name or "\0" in name for name in names):
            raise ValueError("a file in another folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path}: it is not the state of a saved data set: {error!r}") from error
    return [folder / name for name in names]


class _Rows:
    """The rows of a file, record batch by record batch; a `Table`, whose groups are the batches' offsets."""

    def __init__(self, path: Path) -> None:
        self._file = RandomAccessFile(path)
        try:
            with reading(path), load_pyarrow().OSFile(str(path)) as file:
                self.schema = load_pyarrow().ipc.read_schema(file)
                self._first = file.tell()
        except BaseException:
            self._file.close()
            raise

    def _message(self, at: int) -> tuple[bytes, int]:
        """Returns the head of the message at an offset, b"" at the stream's end, and its size with its body."""
        if at == self._file.num_bytes:
            return b"", 0
        mark, num_bytes = struct.unpack("<Ii", self._file.read(at, _FRAME_BYTES))
        if mark != _MARK or num_bytes < 0:
            raise CorruptRecordError(self._file.path, "no batch of rows begins here: restore the file", offset=at)
        head = self._file.read(at, _FRAME_BYTES + num_bytes)
        whole = len(head) + _body_bytes(head[_FRAME_BYTES:])
        if not len(head) <= whole <= self._file.num_bytes - at:
            raise CorruptRecordError(self._file.path, "a batch of rows is cut off: restore the file", offset=at)
        return (head, whole) if num_bytes else (b"", 0)

    def _unread(self) -> Iterator[tuple[int, pyarrow.RecordBatch, Callable[[Iterable[pyarrow.Buffer]], None]]]:
        """Yields the offset of each batch, the batch in memory without content, and what reads some of its buffers."""
        at = self._first
        while (message := self._message(at))[0]:
            head, num_bytes = message
            memory = mmap(-1, num_bytes, MAP_PRIVATE | MAP_ANONYMOUS)  # a page of it is taken when it is written
            memory[: len(head)] = head
            data = load_pyarrow().py_buffer(memory)
            yield at, self._batch(data), partial(self._fill, memory, at, data.address)
            at += num_bytes

    def _fill(self, memory: mmap, at: int, address: int, buffers: Iterable[pyarrow.Buffer]) -> None:
        for buffer in buffers:
            offset = buffer.address - address
            memory[offset : offset + buffer.size] = self._file.read(at + offset, buffer.size)

    def _batch(self, data: bytes | pyarrow.Buffer) -> pyarrow.RecordBatch:
        with reading(self._file.path):
            message = load_pyarrow().ipc.read_message(data)
            if message.type != "record batch":
                problem = f"a {message.type}, expected rows: save the data set without dictionaries"
                raise SourceError(f"{self._file.path}: {problem}")
            if _is_compressed(message.metadata.to_pybytes()):
                advice = "save the data set without compression"
                raise SourceError(f"{self._file.path}: its rows are compressed: {advice}")
            batch = load_pyarrow().ipc.read_record_batch(message, self.schema)
            batch.validate()  # of wrong lengths pyarrow would end the process
            return batch

    def groups(self) -> Iterator[tuple[int, int, int]]:
        return ((at, batch.num_rows, batch.get_total_buffer_size()) for at, batch, _ in self._unread())

    def names(self, image: ArrowColumn) -> Iterator[pyarrow.Array]:
        for _, batch, read in self._unread():
            with reading(self._file.path):
                read(image.name_buffers(batch))
                found = image.names(batch)
                found.validate(full=True)
            yield found

    def batches(self, group: int, taken: Columns) -> Iterator[pyarrow.RecordBatch]:
        batch = self._batch(self._file.read(group, self._message(group)[1]))
        with reading(self._file.path):
            batch.validate(full=True)
        yield batch

    def close(self) -> None:
        self._file.close()


def _is_compressed(metadata: bytes) -> bool:
    """Returns whether a record batch's buffers are compressed: a few bytes may then unpack to any number.

    Arrow's `Message.fbs`: field 2 of a message is the batch, and field 3 of the batch describes the compression.
    """
    message = int.from_bytes(metadata[:4], "little")
    at = message + _entry(metadata, message, 2)
    batch = at + int.from_bytes(metadata[at : at + 4], "little")
    return _entry(metadata, batch, 3) != 0


def _body_bytes(metadata: bytes) -> int:
    """Returns the size of the body after a message's metadata: field 3 of a message."""
    message = int.from_bytes(metadata[:4], "little")
    at = message + _entry(metadata, message, 3)
    return int.from_bytes(metadata[at : at + 8], "little", signed=True) if at != message else 0


def _entry(data: bytes, table: int, field: int) -> int:
    """Returns where a field of a table of FlatBuffers lies, from the table's begin; 0 if it is not there."""
    entries = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    num_bytes, at = int.from_bytes(data[entries : entries + 2], "little"), 4 + 2 * field
    return int.from_bytes(data[entries + at : entries + at + 2], "little") if at < num_bytes else 0
