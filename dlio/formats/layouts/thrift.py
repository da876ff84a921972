"""Thrift's compact protocol, as far as the structs of Parquet need it; bounded by the bytes given.

struct     fields, each u8 (id delta << 4 | type), without delta a varint id; ends with a zero byte
i16 - i64  zigzag varint        double  8 bytes        binary  varint size, bytes
list, set  u8 (size << 4 | type), from 15 on a varint size; items       map  varint size, u8 types, pairs
"""

from __future__ import annotations

from typing import Any

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
Struct = dict[int, Any]  # fields by their ids
_MAX_DEPTH = 12  # of structs and lists within each other: a footer has 9


class CutOffError(ValueError):
    """The struct is longer than the bytes given."""


def read_struct(data: bytes) -> tuple[Struct, int]:
    """Returns the fields of the struct that `data` begins with, by their ids, and the size of the struct in bytes.

    Raises:
        CutOffError: it does not end in `data`.
        ValueError: it is not such a struct.
    """
    reader = _Reader(data)
    return reader.struct(_MAX_DEPTH), reader.at


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> object:
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if not depth:
            raise ValueError("structs are nested too deeply")
        if kind == _STRUCT:
            return self.struct(depth - 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15, depth - 1) for _ in range(self._count(size))]
        if kind == _MAP:
            return self._map(depth)
        raise ValueError(f"{kind} is not a field type")

    def _map(self, depth: int) -> list[object]:
        size = self._count(self._varint())
        kinds = self._byte() if size else 0
        return [(self._value(kinds >> 4, depth - 1), self._value(kinds & 15, depth - 1)) for _ in range(size)]

    def _count(self, size: int) -> int:
        """Returns the size of a list, each of whose items takes a byte or more."""
        if size > len(self._data) - self.at:
            raise CutOffError
        return size

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise CutOffError
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self._data):
            raise CutOffError
        return self._data[self.at - size : self.at]

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of more than 64 bits")
