"""Scrubbing: checks all staged copies of a node for damage, as a cron job does, and repairs them.

The time of a copy's marker and its leases show its use. Scrubbing touches neither, so the order of eviction stays. A
copy is claimed only while it is repaired.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DlioError, StorageError
from dlio.stage.cache.as_owner import PATIENCE_SECONDS, as_owner
from dlio.stage.cache.at_rest import CopyAtRest, RateLimit
from dlio.stage.cache.base_folder import may_change
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.cache.locations import folders_with_copies
from dlio.stage.cache.node_cache import copies
from dlio.stage.cache.repair import files_here, manifest_at_rest, manifest_of, origin_of, repair
from dlio.stage.planning.placement import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The findings in one copy.

    Attributes:
        path: the copy's folder.
        files: the number of files checked.
        bytes: their size according to the manifest.
        damaged: what is wrong, by the file's name.
        repaired: the names of the files that were repaired.
        not_repaired: why other damaged files were not, by the file's name; "" if no repair was tried, or `problem` says
            why.
        problem: why the copy could not be checked or repaired at all; "" if it could.
    """

    path: str
    files: int = 0
    bytes: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)
    repaired: Sequence[str] = ()
    not_repaired: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether no damage is left, as far as is known."""
        return not self.not_repaired and not self.problem


def scrub(
    dest: str | os.PathLike[str] | None = None, *, mend: bool = False, max_rate: int | None = None
) -> Iterator[Scrubbed]:
    """Yields the findings in each complete copy of this user's; for root in each of any user's.

    Args:
        dest: the folder given to `stage`; by default every folder that `clean` looks at.
        mend: repair damaged files from the sources of the copies.
        max_rate: the limit for reading, in bytes per second; None for no limit.

    Raises:
        StorageError: a folder of copies cannot be read.
    """
    for parent in folders_with_copies(dest):
        for folder in copies(parent):
            found = _scrub(folder, mend, max_rate)
            if found is not None:
                yield found


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _scrub(folder: StagedFolder, mend: bool, max_rate: int | None) -> Scrubbed | None:
    """Returns the findings in a copy; None if it is another user's, incomplete, or gone meanwhile."""
    try:
        owner = folder.path.lstat().st_uid
        if not may_change(owner) or not _is_folder(folder.path) or not folder.has_manifest():
            return None
        return check_copy(folder, mend=mend, max_rate=max_rate)
    except DlioError as error:
        return Scrubbed(str(folder.path), problem=error.text) if _is_folder(folder.path) else None
    except OSError:
        return None


def check_copy(
    folder: StagedFolder, *, mend: bool = False, source: str | None = None, max_rate: int | None = None
) -> Scrubbed:
    """Returns the findings in a copy, which is checked and repaired with the rights of its owner.

    Args:
        folder: the copy.
        mend: repair damaged files.
        source: the source to repair from; by default the one that the copy names.
        max_rate: the limit for reading, in bytes per second; None for no limit.

    Raises:
        ManifestError: its manifest is damaged, and `mend` is false.
        DlioError: its manifest is damaged, and the source cannot be read.
        StorageError: it is gone, or another user's.
    """
    with CopyAtRest(folder.path) as copy:
        owner = copy.owner
    return Scrubbed(**as_owner(owner, partial(_look, folder, mend, source, max_rate), _patience(max_rate)))


def _patience(max_rate: int | None) -> float:
    """Returns how long a process may read nothing, in seconds; at a low rate, more than a block's time."""
    return PATIENCE_SECONDS + (2 * BLOCK_BYTES / max_rate if max_rate else 0)


def _look(folder: StagedFolder, mend: bool, source: str | None, max_rate: int | None) -> dict[str, Any]:
    """Returns the same as `check_copy`, as a JSON value."""
    with CopyAtRest(folder.path) as copy:
        manifest, damage = manifest_of(folder, source) if mend else (manifest_at_rest(folder), "")
        found = _checked(copy, manifest, {NAME: damage} if damage else {}, RateLimit(max_rate))
        if not copy.is_there():
            raise StorageError(errno.ENOENT, f"{folder.path} has been removed meanwhile")
    return asdict(_mended(folder, manifest, found, source) if mend and found.damaged else found)


def _checked(copy: CopyAtRest, manifest: Manifest, damaged: dict[str, str], pace: RateLimit) -> Scrubbed:
    """Returns the findings in a copy's files, added to what is known to be damaged."""
    wanted = files_here(manifest)
    damaged |= {file.name: problem for file in wanted if (problem := copy.damage(file, pace))}
    num_bytes = sum(file.num_bytes for file in wanted)
    return Scrubbed(str(copy.path), len(wanted), num_bytes, damaged, not_repaired=dict.fromkeys(damaged, ""))


def _mended(folder: StagedFolder, manifest: Manifest, found: Scrubbed, source: str | None) -> Scrubbed:
    """Returns the findings after the repair."""
    try:
        done = repair(folder, manifest, found.damaged, origin_of(folder, source))
    except DlioError as error:
        return replace(found, problem=error.text)
    return replace(found, repaired=done.repaired, not_repaired=done.not_repaired)
