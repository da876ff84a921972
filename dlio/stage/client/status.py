"""How far the copies of a data set on this node are, as `dlio stage --status` prints it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from dlio.dataset.json_lines import ADVICE
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.errors import ManifestError, StorageError, UsageError
from dlio.io.sizes import counted, format_size
from dlio.locking import claim_file
from dlio.stage.client.client import Client
from dlio.stage.copies.folder import StagedFolder, in_words_missing
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import checked_dest, known_folders, safe_copies
from dlio.stage.copies.node_cache import is_being_filled, users_of
from dlio.stage.meeting.peer import shown as shown_record
from dlio.urls import is_url, shown

_OLD_SECONDS = 3  # after which it is said how old the figures of another node are


def status(content_id: str, dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns the state of each of this user's copies of a data set on this node, complete or not.

    By default it checks all folders of this node that may hold copies.

    Returns:
        For each copy its `path`, whether it `is_complete`, the `problem` of one that was, and if an agent runs, what
        `Client.stat` gives: the bytes read from the source, received from and sent to other nodes, and for each node in
        `nodes` its bytes, rate, time left, what it waits for, and how long ago it told that. If no process answers, it
        has what `unfinished` gives.
    """
    named = None if dest is None else checked_dest(dest)
    return [found for folder in copies(content_id, named) if (found := _told(folder))]


def status_from(source: str | os.PathLike[str], dest: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Returns `status` of the copies that were staged from a folder or a URL, which need not be readable now."""
    name = shown(os.fspath(source)) if is_url(source) else os.path.abspath(source)  # noqa: PTH100
    staged = name.removesuffix(f"/{NAME}")
    return [found for folder in copies("", dest) if _is_from(folder, staged) and (found := _told(folder))]


def _told(folder: StagedFolder) -> dict[str, Any] | None:
    return state(folder) or unfinished(folder)


def _is_from(folder: StagedFolder, source: str) -> bool:
    try:
        return folder.origin() == source
    except UsageError:
        return False


def copies(content_id: str, dest: str | os.PathLike[str] | None) -> Iterator[StagedFolder]:
    """Returns the copies of a data set of which `status` tells."""
    named = known_folders() if dest is None else [Path(dest).absolute()]
    return safe_copies(content_id, named)


def state(folder: StagedFolder) -> dict[str, Any] | None:
    """Returns the state of a copy, None if it neither was complete nor is being filled."""
    found, was_complete = answer(folder), folder.has_manifest()
    if found is None and not was_complete:
        return None
    problem = _problem(folder) if was_complete else ""
    head = {"path": str(folder.path), "is_complete": was_complete and not problem}
    return head | ({"problem": problem} if problem else {}) | (found or {})


def _problem(folder: StagedFolder) -> str:
    """Returns what a copy lacks that has been complete, as text; "" if nothing."""
    try:
        return in_words_missing(folder.missing(files_of(Manifest.load(folder.path).shards_here)))
    except (ManifestError, StorageError) as error:
        return error.text.removesuffix(ADVICE).rstrip(" :,")  # the advice on data sets that are no copies


def unfinished(folder: StagedFolder) -> dict[str, Any] | None:
    """Returns what is here of a copy that is not complete and whose process does not answer; None if there is none.

    Returns:
        Its `path`, whether a process that fills it `is_running`, its last `process` and how that `ended`, who uses it,
        and the bytes that are here, if that process had begun to fetch.

    Raises:
        StorageError: the copy cannot be read.
    """
    if folder.marked_as() != folder.copy:
        return None
    found = {"path": str(folder.path), "is_complete": False, "is_running": is_being_filled(folder)}
    found |= {"process": "a process", "ended": "ended without finishing it", "used_by": users_of(folder)}
    if claim := claim_file.latest(folder.claims):
        found["process"] = claim.owner.process
        if claim.state.startswith("failed"):
            found["ended"] = claim.state
    if manifest := (live := LiveFolder(folder)).manifest():
        here = live.present_bytes(files_of(manifest.shards))
        found |= {"staged_bytes": here, "total_bytes": manifest.num_bytes}
    return found


def answer(folder: StagedFolder) -> dict[str, Any] | None:
    """Returns what `Client.stat` gives, with the seconds left; None if no agent fills or serves the copy and answers.

    Raises StorageError if it is of another version of dlio.
    """
    if LiveFolder(folder).agent() is None:
        return None
    with closing(Client(folder)) as client, suppress(StorageError):  # it ended just now
        found = client.stat()
        return found | {"nodes": [shown_record(node) for node in found["nodes"]]}
    return None


def in_one_word(copy: Mapping[str, Any]) -> str:
    """Returns whether a copy is complete, as `status` gives it; a cache that is smaller than the data set never is."""
    if copy["is_complete"]:
        return "complete"
    if "process" in copy:
        return _words_of_unfinished(copy)
    if "problem" in copy and ("nodes" not in copy or copy["nodes"][0]["is_complete"]):
        return f"damaged: {copy['problem']}: dlio verify {copy['path']} --repair restores it, dlio clean removes it"
    if copy.get("keeps_all", True):
        return "being filled"
    is_full = copy["nodes"][0]["is_complete"]
    return f"a cache that is smaller than the data set, {'full' if is_full else 'being filled'}"


def _words_of_unfinished(copy: Mapping[str, Any]) -> str:
    is_known = "staged_bytes" in copy
    here = f", {format_size(copy['staged_bytes'])} of {format_size(copy['total_bytes'])} are here" if is_known else ""
    used = f", used by {copy['used_by']}" if copy["used_by"] else ""
    if copy["is_running"]:
        return f"being filled{here}{used}; how far it is cannot be asked: if that stays so, end the process"
    return f"unfinished{here}{used}: {copy['process']} {copy['ended']}; stage again, which continues with what is here"


def in_words(node: Mapping[str, Any]) -> str:
    """Returns how far one node is, as `status` gives it in `nodes`."""
    done, total = format_size(node["staged_bytes"]), format_size(node["total_bytes"])
    left = "" if node["is_complete"] or node["seconds_left"] is None else f", {node['seconds_left']:.0f} s left"
    left = f", as it was {counted(age, 'second')} ago" if (age := node["told_seconds"]) >= _OLD_SECONDS else left
    problem = node["waiting_for"] or node.get("hanging")
    waiting = f", waits: {problem}" if problem else ""
    return f"{done} of {total}, {format_size(node['bytes_per_second'])}/s{left}{waiting}"
