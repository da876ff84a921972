"""Finding the shards of one set in a folder."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dlio import formats
from dlio.dataset import manifest
from dlio.errors import CorruptRecordError, SourceError, UsageError
from dlio.io import files
from dlio.pack.index._layout import ListsShards, ShardLayout, load
from dlio.pack.prefetch import side_by_side

_PART = re.compile(r"(.*)-([0-9]+)-of-([0-9]+)")  # as TensorFlow's tools name shards


@dataclass(frozen=True, slots=True)
class Found:
    """A shard of another tool: the name of its file or folder, and its files below the root, the records first."""

    name: str
    files: tuple[str, ...]


def find_shards(root: Path, format: str, match: str | None = None) -> list[Found]:  # noqa: A002  the field's word
    """Returns the shards in the folder `root`, ordered by name, with numbers in numeric order.

    Args:
        root: the folder; a folder in it is at most a shard, and not searched.
        format: the format of the shards.
        match: a pattern of the names to take; an incomplete set is accepted then.

    Raises:
        SourceError: there are no shards, or some shards of a set are missing.
        CorruptRecordError: a file has the name of a shard, but is not one.
        StorageError: the folder cannot be read.
        UsageError: there are several sets.
    """
    layout, suffix = load(format), formats.load(format).SUFFIX
    found = []
    candidates = [path for path in _candidates(root, layout) if match is None or fnmatchcase(path.name, match)]
    for path, parts in zip(candidates, side_by_side(layout.files, candidates), strict=True):
        if parts:
            found.append(Found(path.name, tuple(str(part.relative_to(root)) for part in parts)))
        elif path.name.endswith(suffix) or _PART.fullmatch(path.name):
            problem = "it has the name of a shard, but is cut off, compressed, or of another format"
            raise CorruptRecordError(path, f"{problem}: restore it, or move it away")
    if not found:
        matching = f" that match {match!r}" if match is not None else ""
        raise SourceError(f"{root} holds no shards of this format{matching}: give the folder of the shards")
    if match is None:
        _check_one_set(root, found)
    return found


def _candidates(root: Path, layout: ShardLayout) -> list[Path]:
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder: give the folder of the shards, and --match for one of them")
    listed = layout.listed(root) if isinstance(layout, ListsShards) else None
    if listed is not None:
        return [root / name for name in listed]
    own = (manifest.NAME, manifest.PARTIAL_NAME)
    with files.storage_errors("list", root):
        entries = [path for path in root.iterdir() if path.name not in own and not path.name.startswith(".")]
    return sorted(entries, key=_natural_order)


def _natural_order(path: Path) -> tuple[str | int, ...]:
    """Orders `part-10` after `part-2`."""
    words = re.split(r"([0-9]+)", path.name)  # texts and numbers in turn
    return tuple(int(word) if number % 2 else word for number, word in enumerate(words))


def _check_one_set(root: Path, found: list[Found]) -> None:
    sets: dict[str, list[str]] = defaultdict(list)
    for shard in found:
        sets[re.sub(r"[0-9]+", "N", shard.name)].append(shard.name)
    if len(sets) > 1:
        examples = ", ".join(f"{names[0]} ({len(names)})" for names in sets.values())
        raise UsageError(
            f"{root} holds several sets of shards, beginning with {examples}: choose one with --match; for each of the "
            "others, make a folder of links to its shards"
        )
    parts = [part for shard in found if (part := _PART.match(shard.name))]
    for count in sorted({int(part[3]) for part in parts}):
        here = {int(part[2]) for part in parts if int(part[3]) == count}
        if missing := sorted(set(range(count)) - here)[:3]:
            numbers = ", ".join(map(str, missing))
            raise SourceError(
                f"{root} holds {len(here)} of {count} shards of {parts[0][1]}, without {numbers}: restore them, or take"
                " those that are there with --match '*'"
            )
