"""Keys: the names of millions of samples in two arrays, which take the size of the text and 8 bytes for each name."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from dlio.dataset.sample_group import Pieces
from dlio.errors import SourceError
from dlio.io.files import Hash

LOG_SECONDS = 60.0
log = logging.getLogger(__name__)
BLOCK = 1 << 16  # the number of keys that are Python objects at a time


def key_problem(name: str) -> str | None:
    """Returns why a name is not a key; None for a key."""
    if not name:
        return "an empty path: give every sample a path"
    if "\0" in name:
        return f"the name {name!r} has a zero byte, which no file can have: correct the list"
    try:
        name.encode()
    except UnicodeEncodeError:
        return f"the name {name!r} is not UTF-8: rename the file"
    return None


def printable(name: str) -> str:
    """Returns a name as UTF-8 text; bytes of a file name that are not UTF-8 become escapes such as `\\xe9`."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _encoded(names: list[str], before: int) -> list[bytes]:
    """Returns names in UTF-8; `before` is the number of earlier names; raises SourceError."""
    try:
        encoded = [name.encode() for name in names]
    except UnicodeEncodeError as error:
        raise SourceError(key_problem(error.object)) from None
    if b"" in encoded or b"\0" in b"".join(encoded):
        number, problem = next((number, problem) for number, name in enumerate(names) if (problem := key_problem(name)))
        raise SourceError(f"entry {before + number}: {problem}")
    return encoded


class Keys(Sequence[str]):
    """An immutable sequence of keys; picklable, safe to share between threads.

    A list of 10 million paths takes about 1.1 GB, this about 0.4 GB.
    """

    __slots__ = ("_offsets", "_text")

    def __init__(self, text: bytes | bytearray, offsets: array[int]) -> None:
        """Keeps `text`, the keys in UTF-8 one after the other, and n + 1 `offsets` into it, int64."""
        self._text = text
        self._offsets = offsets

    @classmethod
    def of(cls, names: Iterable[str]) -> Keys:
        """Returns the keys `names`, taken one by one; logs their number once a minute.

        Raises:
            SourceError: a name is empty, is not UTF-8, or has a zero byte.
        """
        text, offsets = bytearray(), array("q", [0])
        waiting = iter(names)
        began = told = time.monotonic()
        while block := list(islice(waiting, BLOCK)):
            encoded = _encoded(block, len(offsets) - 1)
            offsets.extend(islice(accumulate(map(len, encoded), initial=len(text)), 1, None))
            text += b"".join(encoded)
            if (now := time.monotonic()) - told >= LOG_SECONDS:
                told, count = now, len(offsets) - 1
                log.warning("listing: %d files so far, %.0f files/s", count, count / (now - began))
        return cls(text, offsets[:])  # a copy has no spare room

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            text, offsets = self._text, self._offsets
            numbers = range(*index.indices(len(self)))
            return [text[offsets[number] : offsets[number + 1]].decode() for number in numbers]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        start, stop = self._offsets[index % len(self)], self._offsets[index % len(self) + 1]
        return self._text[start:stop].decode()

    def __iter__(self) -> Iterator[str]:
        return (text.decode() for text in self._texts())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Keys):
            return self._text == other._text and self._offsets == other._offsets
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _texts(self) -> Iterator[bytes | bytearray]:
        return (self._text[start:stop] for start, stop in pairwise(self._offsets))

    def take(self, indices: range | NDArray[np.int64]) -> Keys:
        """Returns the keys `indices`, in that order."""
        if isinstance(indices, range) and indices.step == 1:
            offsets = np.frombuffer(self._offsets, np.int64)[indices.start : indices.stop + 1]
            text = bytes(memoryview(self._text)[offsets[0] : offsets[-1]])
            return Keys(text, array("q", (offsets - offsets[0]).tobytes()))
        numbers = indices if isinstance(indices, range) else indices.tolist()
        pieces = [self._text[self._offsets[number] : self._offsets[number + 1]] for number in numbers]
        return Keys(b"".join(pieces), array("q", accumulate(map(len, pieces), initial=0)))

    def pieces(self) -> Pieces:
        """Returns the keys in UTF-8."""
        return Pieces(bytes(self._text), np.frombuffer(self._offsets, np.int64))

    def update(self, running: Hash) -> None:
        """Adds the keys and their offsets to a running digest."""
        running.update(self._text)
        running.update(self._offsets.tobytes())

    def check_distinct(self, path: Path | str) -> None:
        """Checks that no key occurs twice; `path` is the list of the keys.

        Raises:
            SourceError: a key occurs twice; names the list and both entries, counted from 1.
        """
        for second in self.repeated():
            key = self[second]
            first = next(number for number, other in enumerate(self, start=1) if other == key)
            problem = f"{key!r} is listed twice, first by entry {first}: keys name samples, remove one of the two"
            raise SourceError(f"{path}, entry {second + 1}: {problem}")

    def repeated(self) -> list[int]:
        """Returns the numbers of the keys that equal an earlier key, ascending; compares 64-bit digests first."""
        digests = np.fromiter(map(xxhash.xxh3_64_intdigest, self._texts()), dtype="uint64", count=len(self))
        order = np.argsort(digests, kind="stable")
        equal = np.flatnonzero(digests[order][1:] == digests[order][:-1])
        pairs = zip(order[equal].tolist(), order[equal + 1].tolist(), strict=True)
        return sorted(two for one, two in pairs if self[one] == self[two])
