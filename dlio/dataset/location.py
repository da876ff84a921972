"""Where the manifest of a data set lies."""

from __future__ import annotations

from pathlib import Path

NAME = "manifest.jsonl"


def folder_of(path: Path) -> Path:
    """Returns the folder of the data set that `path` is, or whose manifest or shard it is."""
    if (path / NAME).exists() or not (path.is_file() or path.name.startswith("shard-")):
        return path
    return path.parent if (path.parent / NAME).is_file() else path
