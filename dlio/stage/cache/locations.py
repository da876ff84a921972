"""The folders of this node that may hold staged copies."""

from __future__ import annotations

import os
from pathlib import Path

from dlio.io.filesystems import local_folders
from dlio.stage.cache.base_folder import OWN_NAME
from dlio.stage.cache.ownership import own_dest

STAGED_VARIABLE = "DLIO_STAGED"


def known_folders() -> list[Path]:
    """Returns the folders in DLIO_STAGED (separated by ":"), then the node's local folders."""
    named = [Path(name).absolute() for name in os.environ.get(STAGED_VARIABLE, "").split(os.pathsep) if name]
    return [*named, *(folder.absolute() for _, folder in local_folders())]


def folders_with_copies(dest: str | os.PathLike[str] | None = None) -> list[Path]:
    """Returns DEST, by default all `known_folders`, each followed by the folders that users have in its place."""
    named = [Path(dest).absolute()] if dest is not None else known_folders()
    return list(dict.fromkeys(folder for each in named for folder in (each, *_own_folders(each))))


def _own_folders(dest: Path) -> list[Path]:
    """Returns the folder that this user has instead of DEST; for root those of all users."""
    if os.geteuid():
        return [own_dest(dest)]
    try:
        names = [name for name in os.listdir(dest) if OWN_NAME.fullmatch(name)]  # noqa: PTH208  names are enough
    except OSError:
        names = []
    return [dest / name for name in sorted(names)]
