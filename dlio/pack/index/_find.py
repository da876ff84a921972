"""Finding the shards of one set in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dlio import formats
from dlio.dataset import manifest
from dlio.dataset.location import shards_in
from dlio.errors import CorruptRecordError, SourceError, UsageError
from dlio.io import files
from dlio.pack.index._layout import ListsShards, ShardLayout, load
from dlio.pack.listing.file_sets import PART, check_one_set, natural_order
from dlio.pack.prefetch import side_by_side


@dataclass(frozen=True, slots=True)
class FoundShard:
    """A shard of another tool: the name of its file or folder, and its files below the root, the records first."""

    name: str
    files: tuple[str, ...]


def find_shards(root: Path, format: str, match: str | None = None) -> list[FoundShard]:  # noqa: A002  the field's word
    """Returns the shards in the folder `root`, ordered by name, with numbers in numeric order.

    A folder in it is at most a shard, and not searched. With `match`, a pattern of the names to take, an incomplete
    set is accepted.

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
            found.append(FoundShard(path.name, tuple(str(part.relative_to(root)) for part in parts)))
        elif path.name.endswith(suffix) or PART.fullmatch(path.name):
            problem = "it has the name of a shard, but is cut off, compressed, or of another format"
            raise CorruptRecordError(path, f"{problem}: restore it, or move it away")
    if not found:
        matching = f" that match {match!r}" if match is not None else ""
        advice = shards_in(root) or "give the folder of the shards"
        raise SourceError(f"{root} holds no shards of this format{matching}: {advice}")
    if match is None:
        check_one_set(root, [shard.name for shard in found])
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
    return sorted(entries, key=natural_order)
