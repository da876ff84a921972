"""The lines of JSON that a manifest is made of: each error names its line, and a file has a largest size."""

from __future__ import annotations

import errno
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from dlio.errors import ManifestError, StorageError
from dlio.io import files, limits

T = TypeVar("T")
_BYTES_AT_ONCE = 1 << 20
_MANY_OBJECTS = 100_000
_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))  # `json.dumps` would make one for each line
ADVICE = "restore the file, or pack again; dlio verify --repair repairs a staged copy"


@contextmanager
def uncollected() -> Iterator[None]:
    """Pauses the garbage collector, which would visit a million new tuples and find nothing to collect."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MANY_OBJECTS:
            gc.freeze()
            gc.unfreeze()  # they are of the oldest generation now: else the next collection would visit them all
        if was_enabled:
            gc.enable()


def dump(line: object) -> str:
    """Returns one line of JSON; keys keep their order, text its characters."""
    return _ENCODER.encode(line) + "\n"


def dense(values: object) -> bytes:
    """Returns what json.dumps returns for lists, numbers and texts, in a third of its time."""
    try:
        text = msgspec.json.format(msgspec.json.encode(values), indent=0)
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = b"\xff"
    same = text.isascii() and b"\x7f" not in text  # which json.dumps escapes
    return text if same else json.dumps(values).encode()


def blocks(read: Callable[[int], bytes], path: Path) -> Iterator[bytes]:
    """Yields a manifest in blocks of whole lines, about a megabyte each.

    Args:
        read: returns up to so many of the next bytes.
        path: the file, for errors.

    Raises:
        ManifestError: it is longer than the limit.
    """
    rest, num_bytes = b"", 0
    while data := read(max(_BYTES_AT_ONCE, len(rest))):
        num_bytes += len(data)
        _check_length(num_bytes, path)
        if end := data.rfind(b"\n") + 1:
            yield rest + data[:end]
            rest = b""
        rest += data[end:]
    if rest:
        yield rest


def parse(
    lines: Iterable[bytes], kind: type[T], check: Callable[[Sequence[T], bytes], Sequence[T]], path: Path
) -> Iterator[Sequence[T]]:
    """Yields the values of lines of JSON, some thousand at once.

    Args:
        lines: what follows the first line, in blocks.
        kind: the type of the values.
        check: returns the values to keep, given values with their lines; raises ValueError for others.
        path: the file, for errors.

    Raises:
        ManifestError: a line is not JSON, is not of the type, or is refused by `check`.
    """
    decoder, first, before = msgspec.json.Decoder(kind), 2, b""
    for block in lines:
        if before:  # a manifest of one block, as most are, needs no count
            first += int(np.count_nonzero(np.frombuffer(before, np.uint8) == ord("\n")))  # a tenth of `count`'s time
        try:
            yield check(decoder.decode_lines(block), block)
        except (ValueError, RecursionError):
            yield [*_singly(block, first, kind, check, path)]
        before = block


def _singly(
    lines: bytes, first: int, kind: type[T], check: Callable[[Sequence[T], bytes], Sequence[T]], path: Path
) -> Iterator[T]:
    """Yields values of lines that the decoder refuses; a file name may hold half a UTF-16 pair, which json reads."""
    for number, line in enumerate(lines.split(b"\n"), start=first):
        if line.strip():
            try:
                yield from check([msgspec.convert(json.loads(line.decode()), kind)], line)
            except (ValueError, RecursionError) as error:
                raise damaged(path, number, error) from error


def damaged(path: Path, number: int, error: Exception) -> ManifestError:
    """Returns the error for a line that is not what it should be."""
    reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    if isinstance(error, UnicodeDecodeError):
        reason = f"it is not text: {error}"
    return ManifestError(f"{path}, line {number}: {reason}: {ADVICE}")


def read(path: Path) -> bytes | None:
    """Returns the content of a manifest, None if there is none.

    Raises:
        ManifestError: it is longer than the limit.
        StorageError: it cannot be read.
    """
    try:
        data = files.read_regular(path, limits.manifest_bytes())
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    _check_length(len(data), path)
    return data


def _check_length(num_bytes: int, path: Path) -> None:
    if num_bytes > limits.manifest_bytes():
        most = f"more than {limits.manifest_bytes():,} bytes"
        raise ManifestError(f"{path} has {most}: if it is a manifest, set DLIO_MAX_MANIFEST to its size")
