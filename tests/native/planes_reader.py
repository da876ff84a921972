"""Decode-ready records read after docs/reference/decode-ready.md alone, slowly: coefficients, without the core."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_TABLES = Path(__file__).parents[2] / "dlio/native/planes/presets.cpp"
_LEVELS = 6


@dataclass(frozen=True)
class Preset:
    """Zones, and coefficients with one and two raw bits at least; of luma and chroma."""

    zones: list[list[int]]
    raw: list[list[int]]


def presets() -> list[Preset]:
    """Returns the tables of the source."""
    found = []
    for text in _TABLES.read_text().split("Preset(")[1:]:
        numbers = [int(number, 16) for number in re.findall(r"0x[0-9A-F]{16}", text)]
        found.append(Preset([numbers[:16], numbers[16:32]], [numbers[32:34], numbers[34:36]]))
    return found


class _Bits:
    def __init__(self, data: bytes) -> None:
        self.number, self.at = int.from_bytes(data, "little"), 0

    def take(self, count: int) -> int:
        taken = self.number >> self.at & ((1 << count) - 1)
        self.at += count
        return taken

    def deposit(self, mask: int) -> int:
        """Returns as many bits as the set has members, each at the place of a one."""
        return sum(self.take(1) << place for place in range(64) if mask >> place & 1)


def read_tile(data: bytes, components: list[int], preset: Preset) -> NDArray[np.int64]:
    """Returns the blocks of a tile, int64 (n, 64), in natural order; `components` are theirs."""
    heads = struct.unpack_from(f"<{max(components) + 1}H", data)
    count, at = len(components), 2 * len(heads)
    zones = _Bits(data[at : at + (count + 1) // 2])
    at += (count + 1) // 2
    bits, chroma = _Bits(data[at:]), [int(component > 0) for component in components]
    dc = [(heads[c] >> 4) - 2048 + bits.take(heads[c] & 15) for c in components]
    masks = [bits.deposit(preset.zones[kind][zones.take(4)]) for kind in chroma]
    signs, sets, planes = [], [], [[0] * (_LEVELS + 1) for _ in components]

    def goes_on(level: int, kind: int, members: int) -> int:
        certain = preset.raw[level][kind] if level < 2 else 0
        return bits.deposit(members & ~certain) | members & certain

    for kind, mask in zip(chroma, masks, strict=True):
        signs.append(bits.deposit(mask))
        sets.append(goes_on(0, kind, mask))
    for block, mask in enumerate(masks):
        planes[block][0] = mask & ~sets[block]
    for level in range(1, _LEVELS):
        for block, kind in enumerate(chroma):
            members = sets[block]
            planes[block][level - 1] |= bits.deposit(members)
            sets[block] = goes_on(level, kind, members)
            planes[block][level] |= members & ~sets[block]
    for block, members in enumerate(sets):
        planes[block][_LEVELS - 1] |= bits.deposit(members)
    rest = iter(data[at + (bits.at + 7) // 8 :])
    blocks = np.zeros((count, 64), np.int64)
    for block, kind in enumerate(chroma):
        for place in (place for place in range(1, 64) if masks[block] >> place & 1):
            value = sum((planes[block][level] >> place & 1) << level for level in range(_LEVELS))
            value += next(rest) << _LEVELS if sets[block] >> place & 1 else 0
            value -= (preset.raw[0][kind] >> place & 1) + 2 * (preset.raw[1][kind] >> place & 1)
            blocks[block, place] = -value if signs[block] >> place & 1 else value
        blocks[block, 0] = dc[block]
    assert next(rest, None) is None
    return blocks


def read_grey(record: bytes) -> NDArray[np.int64]:
    """Returns the blocks of a grey record, int64 (rows, columns, 64)."""
    magic, version, _, preset, tile_mcus, header, trailer = struct.unpack_from("<4sBBBBII", record)
    assert (magic, version) == (b"\x8aDRJ", 1)
    frame = record.index(b"\xff\xc0", 16)
    height, width = struct.unpack_from(">HH", record, frame + 5)
    rows, columns = -(-height // 8), -(-width // 8)
    per_row, at = -(-columns // tile_mcus), 16 + header + trailer
    sizes = struct.unpack_from(f"<{rows * per_row}H", record, at)
    at += 2 * len(sizes)
    read = []
    for number, size in enumerate(sizes):
        count = min(tile_mcus, columns - number % per_row * tile_mcus)
        read.append(read_tile(record[at : at + size], [0] * count, presets()[preset]))
        at += size
    assert at + 4 == len(record)
    return np.concatenate(read).reshape(rows, columns, 64)
