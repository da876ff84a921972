"""How a data set is named, where its manifest lies, and what may lie next to it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import islice
from os import PathLike
from pathlib import Path

from dlio.errors import UsageError
from dlio.io import files
from dlio.urls import REMOTE, is_url

NAME = "manifest.jsonl"
TREE, TREE_SUFFIX = "tree", ".tree"  # the format of files staged as they are, and how the name of their list ends
STATS_NAME = ".dlio-stats.json"  # numbers that `dlio info --stats` has found
_MOST_LOOKED_AT = 1000  # entries of a folder that holds no data set: it may hold all images
_MOST_NAMED = 5
_MOST_HEAD_BYTES = 1 << 20  # of a line that is read of a file that may be anything
#: By the end of a file's name, the format that `dlio index` knows by it.
_SHARDS = {
    ".tar": "webdataset",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".rec": "recordio",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".sqsh": "squashfs",
    ".squashfs": "squashfs",
    ".mds": "mds",
    ".bin": "litdata",
    ".array_record": "array_record",
    ".parquet": "parquet",
    ".mdb": "lmdb",
}


NO_PATH = "an empty path: is a variable of your script not set?"


def names_url(given: str | PathLike[str]) -> bool:
    """Returns whether what a user gives is a URL; else it is a path.

    Raises:
        UsageError: it is neither text nor a path, is empty, or is a URL that pathlib has turned into a path.
    """
    if not isinstance(given, str | PathLike):
        raise UsageError(f"{given!r} is neither a path nor a URL: give a str or a Path")
    if not os.fspath(given):  # pathlib would take it for this folder
        raise UsageError(NO_PATH)
    if os.fspath(given).startswith(REMOTE) and not is_url(given):
        raise UsageError(
            f"{given} is a URL with one slash only, because pathlib removed the other: give a str with both"
        )
    return is_url(given)


def folder_of(path: Path) -> Path:
    """Returns the folder of the data set that `path` is, or whose manifest or shard it is."""
    with suppress(OSError):  # reading the manifest will raise it
        is_one = path.is_file() or path.name.startswith("shard-")
        if is_one and not (path / NAME).exists() and (path.parent / NAME).is_file():
            return path.parent
    return path


def has_foreign_manifest(folder: Path) -> bool:
    """Returns whether a folder has a `manifest.jsonl` that is not dlio's: it begins with JSON of another kind."""
    try:
        head = json.loads(files.read_regular(folder / NAME, _MOST_HEAD_BYTES).partition(b"\n")[0])
    except (OSError, ValueError, RecursionError):  # a damaged one of dlio's may be no JSON
        return False
    return not isinstance(head, dict) or "dlio" not in head


def advice_on(folder: Path) -> str:
    """Returns as text what to give instead of a folder that holds no data set."""
    return named_in(folder) or shards_in(folder) or unpacked(folder)


def named_in(folder: Path) -> str:
    """Returns as text which data sets lie in the folders within `folder`; empty if none is seen."""
    found: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        found = sorted(entry.name for entry in islice(entries, _MOST_LOOKED_AT) if (Path(entry) / NAME).is_file())
    more = ", ..." if len(found) > _MOST_NAMED else ""
    return f"give one of the data sets in it: {', '.join(map(repr, found[:_MOST_NAMED]))}{more}" if found else ""


def shards_in(folder: Path) -> str:
    """Returns as text what shards of other tools a folder seems to hold, and the verbs for them; empty for none."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_LOOKED_AT):
            if name := _SHARDS.get(os.path.splitext(entry.name)[1]):  # noqa: PTH122  a Path takes ten times as long
                return (
                    f"these are {name} shards: dlio index {folder} --format {name} adopts them in place, "
                    "dlio pack copies them"
                )
    return ""


def unpacked(path: Path) -> str:
    """Returns as text what to give instead of a path without a data set, and the verb if it may be what to pack."""
    broken = f"{path} is a link to what does not exist: " if path.is_symlink() and not path.exists() else ""
    advice = f"{broken}give the folder that dlio pack has written"
    try:
        may_be_packed = path.is_file() or (path.is_dir() and any(path.iterdir()))
    except OSError:
        return advice
    return f"{advice}; if this is what to pack: dlio pack {path} OUT" if may_be_packed else advice
