"""Looking through all staged copies of a node for damage, as a job of cron does, and mending it.

A copy counts as used by its marker's time and by leases; neither is touched, so what is evicted first stays the same.
Only one whose damage is being mended is claimed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DlioError, StorageError
from dlio.stage.cache.as_owner import PATIENCE_SECONDS, as_owner
from dlio.stage.cache.at_rest import CopyAtRest, Pace
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.cache.node_cache import copies, folders_with_copies
from dlio.stage.cache.repair import files_here, manifest_at_rest, manifest_of, origin_of, repair
from dlio.stage.planning.placement import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What was found in one copy.

    Attributes:
        path: the copy's folder.
        files: how many files were checked.
        bytes: how many bytes these have, as the manifest says.
        damaged: what is wrong, by the file's name.
        repaired: the files that are whole again.
        not_repaired: why the others are not, by the file's name; "" where nothing was tried, or `problem` tells why.
        problem: why the copy could not be checked, or nothing of it repaired; "" where it could.
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
        """Whether nothing is damaged any more, as far as is known."""
        return not self.not_repaired and not self.problem


def scrub(
    dest: str | os.PathLike[str] | None = None, *, mend: bool = False, max_rate: int | None = None
) -> Iterator[Scrubbed]:
    """Yields what is found in each complete copy of this user's, or for root of everybody's.

    Args:
        dest: the folder given to `stage`; by default every folder that `clean` looks at.
        mend: bring damaged files anew from the sources of the copies.
        max_rate: the most bytes that are read in a second; None is no limit.

    Raises:
        StorageError: a folder of copies cannot be read.
    """
    for place in folders_with_copies(dest):
        for folder in copies(place):
            found = _scrub(folder, mend, max_rate)
            if found is not None:
                yield found


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _scrub(folder: StagedFolder, mend: bool, max_rate: int | None) -> Scrubbed | None:
    """Returns what is found in a copy; None where it is not one, another user's, incomplete, or gone meanwhile."""
    try:
        owner = folder.path.lstat().st_uid
        if os.geteuid() not in (0, owner) or not _is_folder(folder.path) or not folder.has_manifest():
            return None
        return check_copy(folder, mend=mend, max_rate=max_rate)
    except DlioError as error:
        return Scrubbed(str(folder.path), problem=error.text) if _is_folder(folder.path) else None
    except OSError:
        return None


def check_copy(
    folder: StagedFolder, *, mend: bool = False, source: str | None = None, max_rate: int | None = None
) -> Scrubbed:
    """Returns what is found in a copy, looked at and mended with the rights of its owner.

    Args:
        folder: the copy.
        mend: bring damaged files anew.
        source: from there, instead of where the copy says that it was staged from.
        max_rate: the most bytes that are read in a second; None is no limit.

    Raises:
        ManifestError: its manifest is damaged, and nothing is to be mended.
        DlioError: its manifest is damaged, and the source cannot be read.
        StorageError: it is gone, or another user's.
    """
    with CopyAtRest(folder.path) as copy:
        owner = copy.owner
    return Scrubbed(**as_owner(owner, partial(_look, folder, mend, source, max_rate), _patience(max_rate)))


def _patience(max_rate: int | None) -> float:
    """Returns for how long a process may read nothing, in seconds: at a low rate, one block's time and more."""
    return PATIENCE_SECONDS + (2 * BLOCK_BYTES / max_rate if max_rate else 0)


def _look(folder: StagedFolder, mend: bool, source: str | None, max_rate: int | None) -> dict[str, object]:
    """Returns what `check_copy` does, as a JSON value."""
    with CopyAtRest(folder.path) as copy:
        manifest, damage = manifest_of(folder, source) if mend else (manifest_at_rest(folder), "")
        found = _checked(copy, manifest, {NAME: damage} if damage else {}, Pace(max_rate))
        if not copy.is_there():
            raise StorageError(errno.ENOENT, f"{folder.path} has been removed meanwhile")
    return asdict(_mended(folder, manifest, found, source) if mend and found.damaged else found)


def _checked(copy: CopyAtRest, manifest: Manifest, damaged: dict[str, str], pace: Pace) -> Scrubbed:
    """Returns what is found in a copy's files, besides what is known to be damaged."""
    wanted = files_here(manifest)
    damaged |= {file.name: problem for file in wanted if (problem := copy.damage(file, pace))}
    num_bytes = sum(file.num_bytes for file in wanted)
    return Scrubbed(str(copy.path), len(wanted), num_bytes, damaged, not_repaired=dict.fromkeys(damaged, ""))


def _mended(folder: StagedFolder, manifest: Manifest, found: Scrubbed, source: str | None) -> Scrubbed:
    """Returns what is found once its damage is mended as far as it can be."""
    try:
        done = repair(folder, manifest, found.damaged, origin_of(folder, source))
    except DlioError as error:
        return replace(found, problem=error.text)
    return replace(found, repaired=done.repaired, not_repaired=done.not_repaired)
