"""Which of a node's folders takes a data set, where the user names none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dlio.errors import StorageError, UsageError
from dlio.filesystems import FileSystem, filesystem_of, local_folders
from dlio.manifest import Manifest
from dlio.sizes import format_size
from dlio.stage import model
from dlio.stage.cache import copies as copies_at
from dlio.stage.decide import machine_of
from dlio.stage.folder import StagedFolder
from dlio.stage.trust import is_safe, own_dest
from dlio.topology import Topology


def choose_dest(
    manifest: Manifest, topology: Topology, *, strategy: str = "auto", copies: int = 1, without: Sequence[Path] = ()
) -> tuple[Path, FileSystem]:
    """Returns the first of this node's local folders that has the data set, else has room, and its file system.

    The order is that of `local_folders`; what unused copies take counts as room. Where the whole fits nowhere, `auto`
    gets the roomiest folder, since parts may fit there. Folders `without` are left out: they proved full.

    Raises:
        UsageError: the strategy stripe, which needs a folder that all nodes see.
        StorageError: this node has no local folder, or none with room; which there are, and how much is free.
    """
    if strategy == "stripe":
        raise UsageError("the strategy stripe needs DEST: name a folder on the shared file system")
    folders = [path for path in (folder.absolute() for _, folder in local_folders()) if path not in without]
    for folder in folders:
        found = [*copies_at(folder), *copies_at(own_dest(folder))]
        if any(copy.copy.startswith(manifest.content_id) and _serves(copy) for copy in found):
            return folder, filesystem_of(folder)
    rooms = {folder: machine_of(manifest, folder, topology).free_bytes for folder in folders}
    needed = _bytes_per_node(manifest, topology, strategy, copies)
    fitting = [folder for folder in folders if rooms[folder] >= needed]
    if not fitting and strategy == "auto" and (topology.num_nodes or 1) > 1:
        fitting = sorted(folders, key=rooms.__getitem__, reverse=True)
    if not fitting:
        shown = ", ".join(f"{folder} ({filesystem_of(folder)}): {format_size(rooms[folder])}" for folder in folders)
        wanted = format_size(needed)
        raise StorageError(f"no local folder has room for {wanted}: {shown or 'there is none'}; name a DEST")
    return fitting[0], filesystem_of(fitting[0])


def _serves(copy: StagedFolder) -> bool:
    return is_safe(copy, os.geteuid()) and copy.has_manifest()


def _bytes_per_node(manifest: Manifest, topology: Topology, strategy: str, copies: int) -> int:
    if strategy != "partition":
        return manifest.num_bytes
    return model.partition(manifest.num_bytes, model.Machine(topology.num_nodes or 1, 0), copies).bytes_per_node
