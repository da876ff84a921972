"""How far staging is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import NAME
from dlio.errors import StorageError, UsageError
from dlio.io.sizes import format_size
from dlio.stage.client.client import connect
from dlio.stage.copies.at_rest import named_origin
from dlio.stage.copies.base_folder import copy_named, open_cache
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import known_folders
from dlio.stage.copies.ownership import is_safe, own_dest
from dlio.urls import is_url, shown


def status(content_id: str, dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns the state of each of this user's copies of a data set on this node that is complete or being filled.

    Args:
        content_id: of the data set.
        dest: the folder given to `stage`; by default all folders of this node that may hold copies.

    Returns:
        For each copy its `path`, whether it `is_complete`, and if an agent runs, what `Client.stat` gives: the bytes
        read from the source, received from and sent to other nodes, and for each node in `nodes` its bytes, rate, time
        left, and what it waits for.
    """
    return [found for folder in copies(content_id, dest) if (found := state(folder))]


def status_from(source: str, dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns `status` of the copies that were staged from a folder or a URL, which need not be readable now."""
    name = shown(source) if is_url(source) else os.path.abspath(source)  # noqa: PTH100
    staged = name.removesuffix(f"/{NAME}")
    return [found for folder in copies("", dest) if _is_from(folder, staged) and (found := state(folder))]


def _is_from(folder: StagedFolder, source: str) -> bool:
    try:
        return named_origin(folder) == source
    except UsageError:
        return False


def copies(content_id: str, dest: str | os.PathLike[str] | None) -> Iterator[StagedFolder]:
    """Yields the copies of a data set of which `status` tells."""
    named = known_folders() if dest is None else [Path(dest).absolute()]
    for folder in dict.fromkeys(each for one in named for each in (one, own_dest(one))):
        try:
            with open_cache(folder) as cache:
                names = [name for name in cache.names() if name.startswith(content_id) and copy_named(name)]
        except OSError:
            continue
        yield from (copy for name in names if is_safe(copy := StagedFolder(folder, name), os.geteuid()))


def state(folder: StagedFolder) -> dict[str, Any] | None:
    """Returns the state of a copy, None if it is neither complete nor being filled."""
    head = {"path": str(folder.path), "is_complete": folder.has_manifest()}
    client = connect(folder) if LiveFolder(folder).agent() else None
    if client is None:  # it may have completed the copy just now
        return head | {"is_complete": True} if folder.has_manifest() else None
    try:
        found = client.stat()
    except StorageError:  # it ended just now
        return head | {"is_complete": True} if folder.has_manifest() else None
    finally:
        client.close()
    for node in found["nodes"]:
        left, rate = node["total_bytes"] - node["staged_bytes"], node["bytes_per_second"]
        node["seconds_left"] = round(left / rate, 1) if rate else None
    return head | found


def in_one_word(copy: Mapping[str, Any]) -> str:
    """Returns whether a copy is complete, as `status` gives it; a cache that is smaller than the data set never is."""
    if copy["is_complete"]:
        return "complete"
    if copy.get("keeps_all", True):
        return "being filled"
    is_full = copy["nodes"][0]["is_complete"]
    return f"a cache that is smaller than the data set, {'full' if is_full else 'being filled'}"


def in_words(node: Mapping[str, Any]) -> str:
    """Returns how far one node is, as `status` gives it in `nodes`."""
    done, total = format_size(node["staged_bytes"]), format_size(node["total_bytes"])
    left = "" if node["is_complete"] or node["seconds_left"] is None else f", {node['seconds_left']:.0f} s left"
    waiting = f", waits: {node['waiting_for']}" if node["waiting_for"] else ""
    return f"{done} of {total}, {format_size(node['bytes_per_second'])}/s{left}{waiting}"
