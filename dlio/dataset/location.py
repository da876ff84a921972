"""Where the manifest of a data set lies, and what may lie beside it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

NAME = "manifest.jsonl"
STATS_NAME = ".dlio-stats.json"  # numbers that `dlio info --stats` has found


def folder_of(path: Path) -> Path:
    """Returns the folder of the data set that `path` is, or whose manifest or shard it is."""
    with suppress(OSError):  # reading the manifest will raise it
        is_one = path.is_file() or path.name.startswith("shard-")
        if is_one and not (path / NAME).exists() and (path.parent / NAME).is_file():
            return path.parent
    return path
