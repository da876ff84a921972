"""Mutations of an input's files: blind ones, of numbers and texts in place, and with checksums that fit."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

from tools.fuzz.inputs import FIXED, NOT_FILES, REPAIRED, Files
from tools.fuzz.repair import repaired

Mutation = Callable[[bytes, random.Random], bytes]

MAX_FILE_BYTES = 1 << 17
_TEXTS = (".jsonl", ".json", ".csv", ".lst", ".txt", ".idx")
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_NUMBER = re.compile(rb"-?[0-9]+")
_VALUE = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?[0-9.]+|null|true|false|\{[^{}\n]*\}|\[[^\[\]\n]*\]|[\w/.-]+')
_NUMBERS = (b"0", b"-1", b"1", b"2", b"007", b"9" * 18, b"9" * 19, b"9" * 400, b"1e999", b"-0", b"1.5", b"\xc2\xb2")
_VALUES = (
    *_NUMBERS, b"null", b"true", b"[]", b"{}", b'""', b'"x"', b"NaN", b"Infinity", b'"\\ud800"', b'"\\u0000"',
    b'"../../x"', b'"/etc/passwd"', b"[" * 2000, b'[["a","b"]]', b'"int64"', b'"bytes[]"', b'"float32[2,?]"', b'"str"',
    b'"uint8[99999999999,99999999999]"', b"[0]", b'"bytes"', b"", b" ", b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80",
    b"\r", b"\n", b"\t", b",", b"'", b'"', b"a/../../b.png", b"nan", b"\0", b"/dev/zero", b"a" * 300,
)  # fmt: skip


def _flip(data: bytes, picks: random.Random) -> bytes:
    at = picks.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << picks.randrange(8)]) + data[at + 1 :]


def _number(data: bytes, picks: random.Random) -> bytes:
    """Changes a number of 1 to 8 bytes, most often at a multiple of its size: to a limit, a size, or a neighbour."""
    size = picks.choice([1, 2, 4, 8])
    at = picks.randrange(len(data))
    at -= at % size if picks.randrange(4) else 0
    order = picks.choice("<<<>")
    old = data[at : at + size].ljust(size, b"\0")
    found = struct.unpack(order + _WIDTHS[size], old)[0]
    limits = [0, 1, 2, 3, len(data), 1 << 8 * size - 1, (1 << 8 * size - 1) - 1, (1 << 8 * size) - 1, 4096, 512]
    near = [found + picks.choice([-8, -4, -2, -1, 1, 2, 4, 8]), found << 1, found >> 1, len(data) - found]
    new = picks.choice(limits + near) % (1 << 8 * size)
    return data[:at] + struct.pack(order + _WIDTHS[size], new) + data[at + size :]


def _chunk(data: bytes, picks: random.Random) -> tuple[int, int]:
    start = picks.randrange(len(data))
    return start, min(len(data), start + picks.choice([1, 1, 2, 4, 8, 16, 64, 512, 4096]))


def _delete(data: bytes, picks: random.Random) -> bytes:
    start, end = _chunk(data, picks)
    return data[:start] + data[end:]


def _repeat(data: bytes, picks: random.Random) -> bytes:
    start, end = _chunk(data, picks)
    return data[:end] + data[start:end] * picks.choice([1, 1, 1, 2, 20]) + data[end:]


def _move(data: bytes, picks: random.Random) -> bytes:
    """Writes a chunk over another place."""
    start, end = _chunk(data, picks)
    at = picks.randrange(len(data))
    return data[:at] + data[start:end] + data[at + end - start :]


def _erase(data: bytes, picks: random.Random) -> bytes:
    start, end = _chunk(data, picks)
    return data[:start] + picks.choice([b"\0", b"\xff", b"0", b"["]) * (end - start) + data[end:]


def _cut(data: bytes, picks: random.Random) -> bytes:
    return data[: picks.randrange(len(data))] if picks.randrange(2) else data[: len(data) - picks.randrange(1, 33)]


def _insert(data: bytes, picks: random.Random) -> bytes:
    at = picks.randrange(len(data) + 1)
    return data[:at] + picks.randbytes(picks.choice([1, 1, 2, 4, 8, 40])) + data[at:]


def _digits(data: bytes, picks: random.Random) -> bytes:
    return _replaced(data, _NUMBER, _NUMBERS, picks)


def _value(data: bytes, picks: random.Random) -> bytes:
    return _replaced(data, _VALUE, _VALUES, picks)


def _replaced(data: bytes, what: re.Pattern[bytes], by: Sequence[bytes], picks: random.Random) -> bytes:
    found = list(what.finditer(data[:MAX_FILE_BYTES]))
    if not found:
        return _insert(data, picks)
    place = picks.choice(found)
    new = picks.choice(by) if picks.randrange(4) else picks.choice(found)[0]
    return data[: place.start()] + new + data[place.end() :]


def _line(data: bytes, picks: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = picks.randrange(len(lines))
    lines[at : at + 1] = picks.choice([[], [lines[at], lines[at]], [picks.choice(lines)], [picks.choice(lines)[:-1]]])
    return b"".join(lines)


BLIND: tuple[Mutation, ...] = (_flip, _flip, _number, _number, _number, _delete, _repeat, _move, _erase, _cut, _insert)
OF_TEXT: tuple[Mutation, ...] = (_digits, _value, _value, _line)


def mutate(files: Files, picks: random.Random, others: Sequence[Files] = ()) -> Files:
    """Returns an input changed in one to four places, mostly of one file, whose checksums fit in half of the cases.

    Args:
        files: the input.
        picks: what is chosen; equal states give equal inputs.
        others: inputs whose files may replace one of the same name.
    """
    changed = dict(files)
    names = [name for name in files if name not in NOT_FILES and not name.startswith(FIXED)]
    if not names:
        return changed
    name = picks.choice(names)
    if others and picks.randrange(50) == 0 and (other := picks.choice(others).get(name)):
        changed[name] = other
    for _ in range(picks.choice([1, 1, 2, 4])):
        changed[name] = _mutated(name, changed[name], picks)
    if picks.randrange(2) and (fitting := repaired(name, changed[name])) != changed[name]:
        changed |= {name: fitting, REPAIRED: b""}
    return changed


def _mutated(name: str, data: bytes, picks: random.Random) -> bytes:
    if not data:
        return picks.choice(_VALUES)
    is_text = name.endswith(_TEXTS)
    mutation = picks.choice(OF_TEXT if is_text and picks.randrange(3) else (*BLIND, _digits))
    return mutation(data, picks)[:MAX_FILE_BYTES]
