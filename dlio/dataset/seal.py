"""Digest lines, which show damage to the lines of a manifest: `{"digest":"xxh3-128:..."}`.

The last line of a manifest has the digest of all bytes before it. While a data set is being packed, the header and each
shard's line are followed by their own digest lines, so damage to one line costs one shard.

The version in the header says whether digest lines follow. One flipped bit makes no version 1, which dlio 0.1 wrote
without digest lines, of a version 2: the two characters differ in two bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from dlio.dataset import json_lines
from dlio.errors import ManifestError
from dlio.io import files

VERSION = 2
UNSEALED = 1  # the version of dlio 0.1
_BEGIN = b'{"digest":"'
_OF_0_1 = b'{"dlio":%d,' % UNSEALED  # how its manifests begin
_READ_BYTES = 1 << 20


def digest_line(digest: str) -> bytes:
    """Returns the line that holds a digest."""
    return b'%s%s"}\n' % (_BEGIN, digest.encode())


def sealed(lines: bytes) -> bytes:
    """Returns lines, followed by their digest line."""
    return lines + digest_line(files.digest_bytes(lines))


def sealed_line(value: object) -> bytes:
    """Returns a value as a line of JSON, followed by its digest line."""
    return sealed(json_lines.dump(value).encode())


_NUM_BYTES = len(sealed(b""))  # of a digest line


def read_header(line: bytes, path: Path) -> dict[str, Any]:
    """Returns the header in the first line of a manifest.

    Raises:
        ManifestError: it is not JSON, or of a version that this dlio does not read.
    """
    if not line:
        raise ManifestError(f"{path} is empty: expected a header line")
    try:
        head: dict[str, Any] = json.loads(line.decode())
        version = head["dlio"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise json_lines.damaged(path, 1, error) from error
    if type(version) is not int or version not in (UNSEALED, VERSION):
        problem = f"{path} has the version {version!r}, this dlio reads {UNSEALED} and {VERSION}"
        raise ManifestError(f"{problem}: install a newer dlio; if the file is damaged, {json_lines.ADVICE}")
    return head


class Seal:
    """The running digest of a manifest's lines, from the header on."""

    def __init__(self) -> None:
        self._running = files.new_hash(files.DEFAULT_DIGEST)

    @property
    def digest(self) -> str:
        """The digest of the lines so far."""
        return f"{files.DEFAULT_DIGEST}:{self._running.hexdigest()}"

    def verified(self, blocks: Iterable[bytes], begin: int, path: Path) -> Iterator[bytes]:
        """Yields the lines between the header and the digest line; they are verified when all have been yielded.

        Args:
            blocks: the manifest in blocks of whole lines.
            begin: the length of the header's line, in the first of them.
            path: the manifest, for errors.

        Raises:
            ManifestError: the last line is not the digest line of the others.
        """
        held = b""
        for block in blocks:
            if held:
                self._running.update(held)
                yield held[begin:]
                begin = 0
            held = block
        end = max(begin, held.rfind(b"\n", 0, -1) + 1)
        self._running.update(memoryview(held)[:end])  # a copy would take as long as the digest
        yield held[begin:end]
        if held[end:] != digest_line(self.digest):
            raise _unlike(held[end:], self.digest, path)


def _unlike(last: bytes, digest: str, path: Path) -> ManifestError:
    problem = f"its lines have the digest {digest}, "
    if last.startswith(_BEGIN):
        problem += f"its last line says {last.decode(errors='backslashreplace').rstrip()}"
    else:
        problem += "and its last line, which should hold this digest, is missing or damaged"
    return ManifestError(f"{path} is damaged: {problem}: {json_lines.ADVICE}")


def is_intact(path: Path) -> bool:
    """Returns whether a manifest is what dlio wrote, by its digest line; True for one of dlio 0.1, which has none.

    Raises:
        StorageError: it cannot be read.
    """
    with files.opened_regular(path) as descriptor:
        if os.pread(descriptor, len(_OF_0_1), 0) == _OF_0_1:
            return True
        last, running = _last_line(descriptor), files.new_hash(files.DEFAULT_DIGEST)
        left = os.fstat(descriptor).st_size - _NUM_BYTES
        while left > 0 and (block := os.read(descriptor, min(left, _READ_BYTES))):
            running.update(block)
            left -= len(block)
        return last == digest_line(f"{files.DEFAULT_DIGEST}:{running.hexdigest()}")


def ends_with(path: Path, digest: str) -> bool:
    """Returns whether the last line of a file holds this digest; whether that is right is not checked.

    Raises:
        StorageError: it cannot be read.
    """
    with files.opened_regular(path) as descriptor:
        return _last_line(descriptor) == digest_line(digest)


def _last_line(descriptor: int) -> bytes:
    return os.pread(descriptor, _NUM_BYTES, max(0, os.fstat(descriptor).st_size - _NUM_BYTES))


def sealed_singly(data: bytes, path: Path) -> list[bytes]:
    """Returns the lines that are followed by their own digest lines, and warns of damage before the last of them."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    found = [line for line, last in pairwise(lines) if last.startswith(_BEGIN) and line + last == sealed(line)]
    sizes = [len(line) + _NUM_BYTES for line in found]
    if found and sum(sizes) < data.rfind(found[-1]) + sizes[-1]:
        _warn("%s: lines are damaged: their shards are packed again", path)
    return found


@lru_cache(1024)
def warn_unsealed(path: Path) -> None:
    """Warns, once in a process for each path, that damage to a manifest may go unnoticed."""
    _warn("%s has no digest line, so damage to it may go unnoticed: dlio verify --seal adds one", path)


def _warn(message: str, path: Path) -> None:
    import logging  # with all that it imports, a tenth of the time of `import dlio.dataset.manifest` but numpy's

    logging.getLogger(__name__).warning(message, path)
