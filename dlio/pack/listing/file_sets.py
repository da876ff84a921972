"""What a file begins with, and files that together are one set: `train-00000-of-00008` and the like."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from dlio.errors import SourceError, UsageError
from dlio.io.random_access import RandomAccessFile

PART = re.compile(r"(.*)-([0-9]+)-of-([0-9]+)")  # as TensorFlow's tools name shards


def begins_with(path: Path, num_bytes: int) -> bytes:
    """Returns the first `num_bytes` of a regular file, or all; nothing of anything else; raises StorageError."""
    if not path.is_file():
        return b""
    with closing(RandomAccessFile(path)) as file:
        return file.read(0, min(num_bytes, file.num_bytes))


def natural_order(path: Path) -> tuple[str | int, ...]:
    """Orders `part-10` after `part-2`."""
    parts = re.split(r"([0-9]+)", path.name)  # texts and numbers in turn
    return tuple(int(part) if number % 2 else part for number, part in enumerate(parts))


def check_one_set(root: Path, names: Sequence[str], option: str = "--match ") -> None:
    """Checks that the files of these names in the folder `root` are the parts of one set, and all of them.

    A pattern of names is given by `option`.

    Raises:
        UsageError: there are several sets.
        SourceError: some parts of a set are missing.
    """
    sets: dict[str, list[str]] = defaultdict(list)
    for name in names:
        sets[re.sub(r"[0-9]+", "N", name)].append(name)
    if len(sets) > 1:
        examples = ", ".join(f"{some[0]} ({len(some)})" for some in sets.values())
        raise UsageError(
            f"{root} holds several sets of shards, beginning with {examples}: choose one with {option}PATTERN; for "
            "each of the others, make a folder of links to its shards"
        )
    parts = [part for name in names if (part := PART.match(name))]
    for count in sorted({int(part[3]) for part in parts}):
        here = {int(part[2]) for part in parts if int(part[3]) == count}
        if missing := list(islice((number for number in range(count) if number not in here), 3)):
            numbers = ", ".join(map(str, missing))
            raise SourceError(
                f"{root} holds {len(here)} of {count} shards of {parts[0][1]}, without {numbers}: restore them, or use"
                f" those that exist with {option}'*'"
            )
