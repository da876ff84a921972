"""Pickles of plain data and numpy's arrays of numbers, read without running anything that they name.

A pickle is a program, and numpy's own unpickling functions can be misused to read any memory (by an array of Python
objects that claims to hold numbers). So stand-ins receive the arguments of numpy's functions, and make arrays with
`numpy.frombuffer`, which checks them.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])


def load(content: bytes) -> object:
    """Returns the pickled object, with Python 2's text as bytes, and each array as a `Stored`.

    Raises:
        Exception: of any kind for a damaged pickle; UnpicklingError if it would run something.
    """
    return _ArraysOnly(io.BytesIO(content), encoding="bytes").load()


class Stored:
    """A pickled array; `values` are its numbers, read-only."""

    def __init__(self, *_: object) -> None:
        """Ignores the arguments of numpy's function, which could ask for any amount of memory."""
        self.values: NDArray[Any] | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Kind, bool, bytes]) -> None:
        _, shape, kind, is_fortran, data = state
        self.values = _numbers(data, kind).reshape(shape, order="F" if is_fortran else "C")


class _Kind:
    """Stands for numpy's types of plain numbers."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        self.name = name.decode() if isinstance(name, bytes) else name
        self.byte_order = "="
        if self.name not in _KINDS:
            raise pickle.UnpicklingError(f"an array has the type {self.name!r}, expected numbers")

    def __setstate__(self, state: tuple[int, str | bytes]) -> None:
        order = state[1]
        self.byte_order = order.decode() if isinstance(order, bytes) else order
        if self.byte_order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"an array has the byte order {self.byte_order!r}")


def _numbers(data: bytes, kind: _Kind) -> NDArray[Any]:
    return np.frombuffer(data, kind.byte_order + kind.name)


def _array(data: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> Stored:
    """Stands for numpy's function of pickle protocol 5."""
    array = Stored()
    array.__setstate__((1, shape, kind, order == "F", data))
    return array


def _number(kind: _Kind, data: bytes) -> object:
    return _numbers(data, kind)[0].item()


def _latin1(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): Stored,
    ("numpy.core.multiarray", "scalar"): _number,
    ("numpy.core.numeric", "_frombuffer"): _array,
    ("numpy", "ndarray"): "ndarray",  # named as an argument only
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _latin1,
}


class _ArraysOnly(pickle._Unpickler):
    """Unpickles only dictionaries, lists, text, numbers and numpy's arrays of numbers.

    It is pickle's implementation in Python, since seven bytes make the one in C allocate gigabytes for its memo.
    """

    def find_class(self, module: str, name: str) -> object:
        wanted = module.replace("numpy._core", "numpy.core"), name  # as numpy 2 calls it
        if wanted not in _ADMITTED:
            raise pickle.UnpicklingError(f"it would run {module}.{name}")
        return _ADMITTED[wanted]
