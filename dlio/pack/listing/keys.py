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


def check_folder(where: Path, name: str) -> None:
    """Raises SourceError for a folder that can name no class: without it, the classes after it had other labels."""
    if printable(name) != name:
        raise SourceError(f"{where}: the class folder {printable(name)} is not UTF-8: rename it, or move it away")


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

    __slots__ = ("_bounds", "pieces")

    def __init__(self, pieces: Pieces) -> None:
        """Keeps the keys in UTF-8."""
        # A memoryview gives single numbers in less time, but none of memory that is not aligned, as Dask may send it.
        bounds = np.require(pieces.bounds, np.int64, ("A", "C"))
        self.pieces, self._bounds = Pieces(pieces.data, bounds), bounds.data

    def __reduce__(self) -> tuple[type[Keys], tuple[Pieces]]:
        return Keys, (self.pieces,)

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
        return cls(Pieces(bytes(text), np.array(offsets, np.int64)))  # copies have no spare room

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        count = len(self._bounds) - 1
        if not -count <= index < count:
            raise IndexError(index)
        number = index % count
        return self.pieces.data[self._bounds[number] : self._bounds[number + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        return (text.decode() for text in self._texts())

    def _texts(self) -> Iterator[bytes]:
        return (self.pieces.data[start:stop] for start, stop in pairwise(self._bounds))

    def take(self, indices: range | NDArray[np.int64]) -> Keys:
        """Returns the keys `indices`, in that order."""
        if isinstance(indices, range) and indices.step == 1:
            some = self.pieces.take(slice(indices.start, indices.stop))
            return Keys(Pieces(some.joined(), some.bounds - some.bounds[0]))
        numbers = indices if isinstance(indices, range) else indices.tolist()
        data, bounds = self.pieces.data, self._bounds
        return Keys(Pieces.of([data[bounds[number] : bounds[number + 1]] for number in numbers]))

    def update(self, running: Hash) -> None:
        """Adds the keys and their offsets to a running digest."""
        running.update(self.pieces.data)
        running.update(self.pieces.bounds.tobytes())

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
