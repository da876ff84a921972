"""Several samples, field by field: work on a whole column takes a small part of the time of as many single samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dlio import native
from dlio.dataset.schema import Array, ImageInfo, Sample, Schema
from dlio.io.random_access import Numbers


@dataclass(frozen=True, slots=True)
class Pieces:
    """n values of bytes, one after the other.

    Attributes:
        data: the values.
        bounds: where each begins, and where the last one ends; int64 of shape (n + 1,), C-contiguous.
    """

    data: bytes
    bounds: Numbers

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Pieces:
        """Returns these values."""
        bounds = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=bounds[1:])
        return cls(b"".join(values), bounds)

    @classmethod
    def rows(cls, array: Array) -> Pieces:
        """Returns the bytes of each row of an array of n rows."""
        return cls(array.tobytes(), np.arange(len(array) + 1) * (array.nbytes // max(1, len(array))))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def take(self, rows: slice) -> Pieces:
        """Returns the values `rows`, which follow one another; copies nothing."""
        return Pieces(self.data, self.bounds[rows.start : rows.stop + 1])

    def joined(self) -> bytes:
        """Returns the values alone, one after the other."""
        return self.data[self.bounds[0] : self.bounds[-1]]

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return iter([data[start:stop] for start, stop in pairwise(self.bounds.tolist())])

    @property
    def sizes(self) -> Numbers:
        """The size of each value, in bytes; int64 of shape (n,)."""
        return np.diff(self.bounds)

    def extend(self, crcs: NDArray[np.uint32]) -> None:
        """Extends each CRC-32C by its value; uint32 of shape (n,)."""
        if native.available:
            native.extend_crcs(self.data, self.bounds, crcs)
        else:
            crcs[:] = list(map(native.crc32c, self, crcs.tolist()))


def interleave(*columns: tuple[Pieces, int]) -> bytes:
    """Returns the n values of several columns, row by row; needs the compiled core.

    Args:
        columns: the values, and a number of bytes: each row is padded with zeros to a multiple of it.
    """
    starts, used = [], np.zeros(len(columns[0][0]), np.int64)
    for pieces, multiple in columns:
        starts.append(used)
        used = used + pieces.sizes
        used += -used % multiple
    ends = np.cumsum(used)
    rows = ends - used
    placed = zip([pieces for pieces, _ in columns], starts, strict=True)
    return native.place(int(ends[-1]), [(pieces.data, pieces.bounds, rows + start) for pieces, start in placed])


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """n samples whose fields are bytes, or the rows of arrays.

    Attributes:
        keys: their n keys, in UTF-8.
        fields: the n values of each field.
        image_infos: the headers of their images, if the packer has read them.
    """

    keys: Pieces
    fields: Mapping[str, Pieces | Array]
    image_infos: Sequence[ImageInfo] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Sample]:
        names, columns, infos = list(self.fields), map(_values, self.fields.values()), self.image_infos or repeat(None)
        for key, info, *values in zip(self.keys, infos, *columns):  # noqa: B905  infos may have no end
            yield Sample(key.decode(), dict(zip(names, values)), info)  # noqa: B905  to save time

    def pieces(self, name: str) -> Pieces:
        """Returns the values of a field of bytes."""
        return cast(Pieces, self.fields[name])

    def numbers(self, name: str) -> Numbers:
        """Returns the values of a field of whole numbers, int64 of shape (n,)."""
        return cast(Numbers, self.fields[name])

    def follows(self, schema: Schema) -> bool:
        """Returns whether `Schema.check` would return every sample unchanged; may return False although it would."""
        kinds = {name: str(kind) for name, kind in schema.fields}
        return [*kinds.items()] == [(name, _kind(values)) for name, values in self.fields.items()]


def _kind(values: Pieces | Array) -> str:
    if isinstance(values, Pieces):
        return "bytes"
    return "int64" if values.dtype == np.int64 and values.ndim == 1 else ""


def _values(values: Pieces | Array) -> Iterable[object]:
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values
