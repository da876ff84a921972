"""Scrubbing: checks all staged copies of a node for damage, as a cron job does, and repairs them.

The time of a copy's marker and its leases show its use. Scrubbing touches neither, so the order of eviction stays. A
copy is claimed only while it is repaired. A process that scrubs steps back behind all others.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dlio.dataset.location import TREE
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.dataset.tree import added, differing, num_files
from dlio.errors import DlioError, StorageError
from dlio.io import files
from dlio.rights.as_owner import as_owner, in_time
from dlio.rights.patience import DEADLINE_SECONDS, Patience
from dlio.stage.copies.base_folder import may_change
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.locations import folders_with_copies
from dlio.stage.copies.node_cache import copies
from dlio.stage.upkeep.at_rest import CopyAtRest, RateLimit
from dlio.stage.upkeep.repair import manifest_at_rest, manifest_of, origin_of, repair

_LEAST_RATE = 4 << 20  # bytes per second, one block: a disk that others use gives more
_SHARE = 1 / 2  # of the time left that one user can use up while others wait
_PASSES = 4  # a repair reads a file, its source, writes it, and reads it again; some file systems compress
_NICEST = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30, "ppc64le": 273}  # asm/unistd.h
_OF_PROCESS, _IDLE = 1, 3 << 13  # IOPRIO_WHO_PROCESS; IOPRIO_CLASS_IDLE, see ioprio_set(2)


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The findings in one copy.

    Attributes:
        path: the copy's folder.
        files: the number of files checked; of what was staged as it is, without the list of them.
        bytes: their size according to the manifest.
        damaged: what is wrong, by the file's name.
        repaired: the names of the files that were repaired.
        not_repaired: why other damaged files were not, by the file's name; "" if no repair was tried, or `problem` says
            why.
        problem: why the copy could not be checked or repaired at all; "" if it could.
        added: what somebody has put into a folder that was staged as it is, which is no damage.
    """

    path: str
    files: int = 0
    bytes: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)
    repaired: Sequence[str] = ()
    not_repaired: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    added: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """Whether no damage is left, as far as is known."""
        return not self.not_repaired and not self.problem


def scrub(
    dest: str | os.PathLike[str] | None = None,
    *,
    mend: bool = False,
    max_rate: int | None = None,
    deadline: float = DEADLINE_SECONDS,
) -> Iterator[Scrubbed]:
    """Yields the findings in each complete copy of this user's; for root in each of any user's.

    Args:
        dest: the folder given to `stage`; by default every folder that `clean` searches.
        mend: repair damaged files from the sources of the copies.
        max_rate: the limit for reading, in bytes per second; None for no limit.
        deadline: for root, the seconds that the copies of all other users together may take. While others wait, no
            user can use up more than half of what is left. Your own copies take as long as they do.

    Raises:
        StorageError: a folder of copies cannot be read, or `dest` is no folder.
    """
    patience = Patience(deadline)
    owned: dict[int, list[StagedFolder]] = {os.geteuid(): []}
    problem = None
    try:
        for owner, parent, name in in_time(partial(_owned, dest), patience, _SHARE):
            owned.setdefault(owner, []).append(StagedFolder(Path(parent), name))
    except StorageError as error:
        if error.errno != errno.ETIMEDOUT:
            raise
        problem = Scrubbed(str(dest or "all that is staged on this node"), problem=error.text)
    look = partial(_look, mend=mend, source=None, max_rate=max_rate)
    for number, (owner, folders) in enumerate(owned.items(), 1):
        yield from _scrub(owner, folders, look, patience, _SHARE if number < len(owned) else 1)
    if problem:
        yield problem


def _owned(dest: str | os.PathLike[str] | None) -> Iterator[tuple[int, str, str]]:
    """Yields the owner of each copy that this user may check, the folder in which it lies, and its name."""
    with files.storage_errors("access", Path(dest or "/")):
        os.stat(dest or "/")  # noqa: PTH116  a check of a misspelt one would never find anything wrong
    for parent in folders_with_copies(dest):
        for folder in copies(parent):
            with suppress(OSError):
                status = folder.path.lstat()
                if may_change(status.st_uid) and stat.S_ISDIR(status.st_mode):
                    yield status.st_uid, str(parent), folder.copy


def _scrub(
    owner: int,
    folders: Sequence[StagedFolder],
    look: Callable[[StagedFolder], dict[str, Any]],
    patience: Patience,
    share: float,
) -> Iterator[Scrubbed]:
    """Yields the findings in the complete copies of one user."""
    left = dict.fromkeys(str(folder.path) for folder in folders)
    try:
        for path, found in as_owner(owner, partial(_look_at_all, folders, look), patience, share):
            del left[path]
            if found:
                yield Scrubbed(**found)
    except StorageError as error:
        yield from (Scrubbed(path, problem=error.text) for path in left)


def _look_at_all(
    folders: Sequence[StagedFolder], look: Callable[[StagedFolder], dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yields each copy with the findings in it; None if it is incomplete, or was removed."""
    for folder in folders:
        path = str(folder.path)
        try:
            yield path, look(folder) if folder.has_manifest() else None
        except DlioError as error:
            yield path, asdict(Scrubbed(path, problem=error.text)) if _is_folder(folder.path) else None
        except OSError:
            yield path, None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def check_and_mend(folder: StagedFolder, source: str | None) -> Scrubbed:
    """Returns the findings in a copy, which is checked and repaired with the rights of its owner.

    Args:
        folder: the copy.
        source: the source to repair from; None for the one that the copy names.

    Raises:
        DlioError: its manifest is damaged, and the source cannot be read.
        StorageError: it was removed, or another user's.
    """
    with files.storage_errors("access", folder.path):
        owner, system = folder.path.lstat().st_uid, os.statvfs(folder.dest)
    used = (system.f_blocks - system.f_bfree) * system.f_frsize  # files full of holes have no end, but these bytes have
    patience = Patience(DEADLINE_SECONDS, _LEAST_RATE, _PASSES * used or math.inf)
    [found] = as_owner(owner, lambda: [_look(folder, True, source, None)], patience)
    return Scrubbed(**found)


def _look(folder: StagedFolder, mend: bool, source: str | None, max_rate: int | None) -> dict[str, Any]:
    """Returns the findings in a copy, repaired if it is to `mend` it, as a JSON value; raises DlioError."""
    with CopyAtRest(folder.path) as copy:
        manifest, damage = manifest_of(folder, source) if mend else (manifest_at_rest(folder), "")
        found = _checked(copy, manifest, {NAME: damage} if damage else {}, RateLimit(max_rate))
        if not copy.is_there():
            raise StorageError(errno.ENOENT, f"{folder.path} was removed")
    return asdict(_mended(folder, manifest, found, source) if mend and found.damaged else found)


def _checked(copy: CopyAtRest, manifest: Manifest, damaged: dict[str, str], pace: RateLimit) -> Scrubbed:
    """Returns the findings in a copy's files, added to what is known to be damaged."""
    wanted, more = files_of(manifest.shards_here), list[str]()
    damaged |= {file.name: problem for file in wanted if (problem := copy.damage(file, pace))}
    if not any(file.name in damaged for file in wanted[:1]):  # the list of a copied file or folder
        damaged = dict(differing(manifest, copy.path)) | damaged
        more = added(manifest, copy.path)
    count = num_files(manifest) if manifest.format == TREE else len(wanted)
    num_bytes = sum(file.num_bytes for file in wanted)
    return Scrubbed(str(copy.path), count, num_bytes, damaged, not_repaired=dict.fromkeys(damaged, ""), added=more)


def _mended(folder: StagedFolder, manifest: Manifest, found: Scrubbed, source: str | None) -> Scrubbed:
    """Returns the findings after the repair."""
    try:
        done = repair(folder, manifest, found.damaged, origin_of(folder, source))
    except DlioError as error:
        return replace(found, problem=error.text)
    return replace(found, repaired=done.repaired, not_repaired=done.not_repaired)


def step_back() -> None:
    """Gives this process and its children the lowest priority permanently, as far as the system allows."""
    os.nice(_NICEST)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _OF_PROCESS, 0, _IDLE)  # a kernel without it answers ENOSYS
