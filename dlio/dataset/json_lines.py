"""The lines of JSON that a manifest is made of: each error names its line, and a file has a largest size."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlio.errors import ManifestError, StorageError
from dlio.io import files, limits

_LINES_AT_ONCE = 1024  # the values of a million lines would take gigabytes


def dump(line: Mapping[str, object]) -> str:
    """Returns one line of JSON; keys keep their order, text its characters."""
    return json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n"


def values(lines: Sequence[str], path: Path) -> Iterator[Any]:
    """Yields the JSON value of each line. Many are parsed at once, in half the time; if that fails, singly.

    Raises:
        ManifestError: a line is not one JSON value.
    """
    for start in range(0, len(lines), _LINES_AT_ONCE):
        some = lines[start : start + _LINES_AT_ONCE]
        try:
            found = json.loads(f"[{','.join(some)}]")
        except (ValueError, RecursionError):
            found = []
        yield from found if len(found) == len(some) else _singly(some, start + 1, path)


def _singly(lines: Sequence[str], first: int, path: Path) -> Iterator[Any]:
    for number, line in enumerate(lines, start=first):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise damaged(path, number, error) from error


def damaged(path: Path, number: int, error: Exception) -> ManifestError:
    """Returns the error for a line that is not what it should be."""
    reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    return ManifestError(f"{path}, line {number}: {reason}: restore the file or pack it anew")


def read(path: Path) -> list[str] | None:
    """Returns the lines of a file, None if there is none; raises as `split`, and StorageError."""
    try:
        return split(files.read_regular(path, limits.manifest_bytes()), path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def split(data: bytes, path: Path) -> list[str]:
    """Returns the lines of a manifest, which the caller reads up to one byte beyond the limit.

    Raises:
        ManifestError: they are longer than the limit, or not text.
    """
    if len(data) > limits.manifest_bytes():
        most = f"more than {limits.manifest_bytes():,} bytes"
        raise ManifestError(f"{path} has {most}: if all that is a manifest, set DLIO_MAX_MANIFEST to its size")
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").readlines()  # str.splitlines also splits elsewhere
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is not text: {error}: restore the file or pack it anew") from error
