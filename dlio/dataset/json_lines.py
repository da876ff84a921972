"""The lines of JSON that a manifest is made of: each error names its line, and a file has a largest size."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from dlio.errors import ManifestError, StorageError
from dlio.io import files, limits

T = TypeVar("T")
_BYTES_AT_ONCE = 1 << 20


def dump(line: object) -> str:
    """Returns one line of JSON; keys keep their order, text its characters."""
    return json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n"


def dense(values: object) -> bytes:
    """Returns what json.dumps returns for lists, numbers and texts, in a third of its time."""
    try:
        text = msgspec.json.format(msgspec.json.encode(values), indent=0)
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = b"\xff"
    same = text.isascii() and b"\x7f" not in text  # which json.dumps escapes
    return text if same else json.dumps(values).encode()


def parse(
    data: bytes, begin: int, kind: type[T], check: Callable[[Sequence[T]], Sequence[T]], path: Path
) -> Iterator[Sequence[T]]:
    """Yields the values of lines of JSON, some thousand at once.

    Args:
        data: what the file holds.
        begin: where the first of the lines begins.
        kind: the type of the values.
        check: returns values as they are to be; raises ValueError for others.
        path: the file, for errors.

    Raises:
        ManifestError: a line is not JSON, is not of the type, or is refused by `check`.
    """
    decoder = msgspec.json.Decoder(kind)
    while begin < len(data):
        end = data.find(b"\n", begin + _BYTES_AT_ONCE) + 1 or len(data)
        try:
            yield check(decoder.decode_lines(memoryview(data)[begin:end]))
        except (ValueError, RecursionError):
            first = 1 + data.count(b"\n", 0, begin)
            yield [*_singly(data[begin:end], first, kind, check, path)]
        begin = end


def _singly(
    lines: bytes, first: int, kind: type[T], check: Callable[[Sequence[T]], Sequence[T]], path: Path
) -> Iterator[T]:
    """Yields values of lines that the decoder refuses; a file name may hold half a UTF-16 pair, which json reads."""
    for number, line in enumerate(lines.split(b"\n"), start=first):
        if line.strip():
            try:
                yield from check([msgspec.convert(json.loads(line.decode()), kind)])
            except (ValueError, RecursionError) as error:
                raise damaged(path, number, error) from error


def damaged(path: Path, number: int, error: Exception) -> ManifestError:
    """Returns the error for a line that is not what it should be."""
    reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    if isinstance(error, UnicodeDecodeError):
        reason = f"it is not text: {error}"
    return ManifestError(f"{path}, line {number}: {reason}: restore the file or pack it anew")


def read(path: Path) -> bytes | None:
    """Returns the content of a manifest, None if there is none.

    Raises:
        ManifestError: it is longer than the limit.
        StorageError: it cannot be read.
    """
    try:
        return bounded(files.read_regular(path, limits.manifest_bytes()), path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def bounded(data: bytes, path: Path) -> bytes:
    """Returns the content of a manifest, which the caller reads up to one byte beyond the limit; raises as `read`."""
    if len(data) > limits.manifest_bytes():
        most = f"more than {limits.manifest_bytes():,} bytes"
        raise ManifestError(f"{path} has {most}: if all that is a manifest, set DLIO_MAX_MANIFEST to its size")
    return data
