"""The choice of a node's folder for a data set, if the user names none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlio.dataset import seal
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import StorageError, UsageError
from dlio.io.filesystems import filesystem_of, local_folders
from dlio.io.sizes import format_size
from dlio.stage.choose.decide import machine_of
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.node_cache import copies as copies_at
from dlio.stage.copies.ownership import is_safe, own_dest
from dlio.stage.job import Job
from dlio.stage.planning.cost import Machine, Volume
from dlio.stage.strategies import AUTO, cost_of, needs_of

_WORTH_SHARDS = 1000  # the id of a smaller data set is computed sooner than a copy is found


def with_dest(job: Job, strategy: str, without: Sequence[Path] = ()) -> Job:
    """Returns the job with the first of this node's local folders that has the data set, or else has room.

    The order is that of `local_folders`. Unused copies count as room. If the whole fits nowhere, `auto` gets the
    roomiest folder, since parts may fit there. The listener `chosen` is called with the folder.

    Args:
        job: its destination is ignored.
        strategy: the name of a strategy.
        without: folders that proved full.

    Raises:
        UsageError: the strategy needs a folder that all nodes see; no such strategy exists.
        StorageError: this node has no local folder, or none with room; the message lists them with their room.
    """
    needs = needs_of(strategy)
    if needs and needs.shared:
        raise UsageError(f"the strategy {strategy} needs DEST: name a folder on the shared file system")
    folders = [path for path in (folder.absolute() for _, folder in local_folders()) if path not in without]
    dest = next((folder for folder in folders if _has_copy(job, folder)), None) or _roomy(job, strategy, folders)
    if job.listeners.chosen:
        job.listeners.chosen(dest, filesystem_of(dest))
    return replace(job, dest=dest)


def learn_id(manifest: Manifest, dest: Path) -> None:
    """Takes the content id from a whole copy in `dest` whose manifest ends with the same digest, as it is not computed.

    Only copies that no other user but root can change count.
    """
    if len(manifest.shards) < _WORTH_SHARDS or not manifest.digest or "content_id" in vars(manifest):
        return
    with suppress(OSError):  # then it is computed
        for copy in _copies(dest):
            is_whole = "." not in copy.copy and _serves(copy) and copy.marked_as() == copy.copy
            if is_whole and seal.ends_with(copy.path / NAME, manifest.digest):
                vars(manifest)["content_id"] = copy.copy
                return


def _copies(folder: Path) -> list[StagedFolder]:
    return [*copies_at(folder), *copies_at(own_dest(folder))]


def _has_copy(job: Job, folder: Path) -> bool:
    learn_id(job.manifest, folder)
    return any(copy.copy.startswith(job.manifest.content_id) and _serves(copy) for copy in _copies(folder))


def _serves(copy: StagedFolder) -> bool:
    return is_safe(copy, os.geteuid()) and copy.has_manifest()


def _roomy(job: Job, strategy: str, folders: Sequence[Path]) -> Path:
    """Returns the first folder with room; raises StorageError if none has."""
    rooms = {folder: machine_of(job.manifest, folder, job.topology).free_bytes for folder in folders}
    needed = _bytes_per_node(job, strategy)
    fitting = [folder for folder in folders if rooms[folder] >= needed]
    if not fitting and strategy == AUTO and (job.topology.num_nodes or 1) > 1:
        fitting = sorted(folders, key=rooms.__getitem__, reverse=True)
    if not fitting:
        shown = ", ".join(f"{folder} ({filesystem_of(folder)}): {format_size(rooms[folder])}" for folder in folders)
        raise StorageError(
            f"no local folder has room for {format_size(needed)}: {shown or 'this node has none'}; name a DEST"
        )
    return fitting[0]


def _bytes_per_node(job: Job, strategy: str) -> int:
    if strategy == AUTO:
        return job.manifest.num_bytes
    machine = Machine(job.topology.num_nodes or 1, 0)
    return cost_of(strategy, Volume.of(job.manifest), machine, job.options.copies).bytes_per_node
