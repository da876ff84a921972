"""The folder of an index of files: its lists and tables, those of the index that replaces it, and what is left over.

The first index lies in the folder itself, the next one in `.index-1` in it, and so on, each with a link to the files.
So the old one stays whole until the manifest names the new one.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from dlio.dataset import manifest, sample_table
from dlio.dataset.manifest import Manifest
from dlio.dataset.shard import files_of
from dlio.errors import UsageError
from dlio.formats.layouts import file_list
from dlio.io import files
from dlio.pack.index import CLAIMS
from dlio.pack.plan import shard_number
from dlio.pack.resume import INDEXED
from dlio.pack.sets.linked import link_target

FORMAT = "files"
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]+\.tmp", re.DOTALL)  # as `files.publish_bytes` names them
_PLACE = re.compile(r"\.index-([0-9]{1,9})")


def check_free(root: Path, overwrite: bool) -> Manifest | None:
    """Checks that a folder is new, or holds nothing but an index that may be replaced, which it returns, or a part."""
    with files.storage_errors("access", root):
        names = {path.name for path in root.iterdir()} if root.exists() else set[str]()
    found = Manifest.load(root) if manifest.NAME in names else None
    if found is not None:
        if (found.format, found.origin.get("source")) != (FORMAT, INDEXED):
            raise UsageError(f"{root} holds another data set: give another --out")
        if not overwrite:
            raise UsageError(f"{root} has been indexed: use it, or index the files again with --overwrite")
    if others := sorted(name for name in names if not _is_own(name)):
        raise UsageError(f"{root} holds {others[0]!r}: give a new or an empty folder with --out")
    return found


def _is_own(name: str) -> bool:
    """Returns whether a file's name is one of an index, or of such a file that was not finished."""
    name = aside[1] if (aside := _UNFINISHED.fullmatch(name)) else name
    is_shard = shard_number(name) is not None and name.endswith((file_list.SUFFIX, sample_table.SUFFIX))
    return is_shard or name in (manifest.NAME, file_list.FOLDER, CLAIMS) or _PLACE.fullmatch(name) is not None


def _place_of(found: Manifest) -> str:
    """Returns the folder of an index's lists and tables, below its root."""
    return str(Path(found.shards[0].files[0].name).parent) if found.shards else "."


def next_place(old: Manifest) -> str:
    """Returns the folder for the index that replaces one, which stays whole until then."""
    number = _PLACE.fullmatch(_place_of(old))
    return f".index-{int(number[1]) + 1 if number else 1}"


def remove_but(root: Path, kept: Manifest | None) -> None:
    """Removes all of an index's files but those of one, if any: what killed runs and replaced ones left."""
    place = None if kept is None else _place_of(kept)
    stay = {CLAIMS} if kept is None else {CLAIMS, manifest.NAME, place}
    names = {Path(file.name).name for file in files_of(kept.shards)} if kept and place == "." else set()
    stay |= names | {file_list.FOLDER} if place == "." else set()
    with files.storage_errors("remove", root):
        for path in root.iterdir():
            if path.name in stay:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def publish(made: Manifest, old: Manifest | None, folder: Path) -> Manifest:
    """Publishes the manifest of an index of `folder`, and returns it; returns the old one if nothing has changed since.

    So a copy that was staged is found again, and a run that was saved continues. Missing files of the old one are
    written again.

    Raises:
        StorageError: the file system refused.
    """
    root = made.root
    if old is None or _unplaced(made) != _unplaced(old):
        made.save(root)
        remove_but(root, made)
        return made
    place, aside = root / _place_of(old), root / _place_of(made)
    with files.storage_errors("write", place):
        place.mkdir(exist_ok=True)
        (aside / file_list.FOLDER).unlink()
        (aside / file_list.FOLDER).symlink_to(link_target(folder, place))
        for path in aside.iterdir():
            path.replace(place / path.name)
    files.sync_folder(place)
    remove_but(root, old)
    return old


def _unplaced(found: Manifest) -> Manifest:
    """Returns a manifest without the folder of its lists and tables."""
    shards = (
        shard.replace(files=tuple(file.replace(name=Path(file.name).name) for file in shard.files))
        for shard in found.shards
    )
    return replace(found, shards=tuple(shards), origin={**found.origin, "plan": ""})
