"""Chunks as LitData's BinaryWriter lays them out."""

from __future__ import annotations

import json
import struct
from itertools import accumulate
from pathlib import Path

KINDS = {"image": "jpeg", "label": "int", "name": "str"}


def write_chunk(root: Path, rows: list[list[bytes]], kinds: dict[str, str] = KINDS, **config: object) -> None:
    """Writes one chunk of dictionaries with these leaves, and its index."""
    spec = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.dict", "context": json.dumps(list(kinds)), "children_spec": [spec] * len(kinds)}
    items = [struct.pack(f"<{len(row)}I", *map(len, row)) + b"".join(row) for row in rows]
    offsets = accumulate(map(len, items), initial=4 + 4 * (len(rows) + 1))
    chunk = root / "chunk-0-0.bin"
    chunk.write_bytes(struct.pack(f"<{len(rows) + 2}I", len(rows), *offsets) + b"".join(items))
    told = {"compression": None, "encryption": None, "data_format": list(kinds.values())}
    told |= {"data_spec": json.dumps([1, tree])} | config
    entry = {"chunk_bytes": chunk.stat().st_size, "chunk_size": len(rows), "dim": None, "filename": chunk.name}
    (root / "index.json").write_text(json.dumps({"chunks": [entry], "config": told}))
