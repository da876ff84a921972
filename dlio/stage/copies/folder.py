"""The folder of a staged copy, and what lies in it.

    DEST/dlio/                        as open to other users as DEST is; sticky if others may write
    DEST/dlio/.claims/<copy>/         the processes that copy (dlio/locking/claim.py)
    DEST/dlio/.leases/<copy>@<token>  the jobs that use it (lease.py)
    DEST/dlio/<copy>/.dlio/copy.json  the marker: this folder is dlio's, and dlio may remove it
    DEST/dlio/<copy>/.dlio/aside/     the marker and the manifest before they are published
    DEST/dlio/<copy>/.dlio/live/      unfinished files, which loaders may read (live_folder.py)
    DEST/dlio/<copy>/...              the data set's files, each named once it is verified, as open as its source
    DEST/dlio/<copy>/manifest.jsonl   published last, when all files are complete

`<copy>` is the data set's content id; the copy of a part adds `.<node>of<nodes>x<copies>`. If another user's folder,
copy or claim is in the way, DEST/dlio-u<uid> is used instead of DEST (locations.py).

Others may write to DEST, DEST/dlio and the folders of claims and leases. So entries of these are opened by
`open_cache`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlio.dataset import seal
from dlio.dataset.location import TREE
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.errors import StorageError, UsageError
from dlio.io import files, world
from dlio.io.open_folder import Below, OpenFolder, TakenError
from dlio.io.threads import in_threads
from dlio.rights.access import Access, without_lists
from dlio.stage.copies.base_folder import (
    CACHE,
    CLAIMS,
    CONTROL,
    MARKER,
    is_closed,
    is_own,
    marker_of,
    open_cache,
    open_dest,
)
from dlio.stage.copies.learned import Learned
from dlio.stage.copies.tree import restore
from dlio.urls import is_url

ASIDE = "aside"
LIVE = "live"
_OTHERS = (NAME, CONTROL)  # what a complete copy lists but its files
_LOOKS = 64  # at files that a thread stats in a row: handing over each would take longer than the stat itself
_THREADS = 32


def in_words_missing(missing: Sequence[File]) -> str:
    """Returns what `StagedFolder.missing` has found, as text; "" if nothing is missing."""
    if not missing:
        return ""
    more = f" (the first of {len(missing):,} such files)" if len(missing) > 1 else ""
    return f"{missing[0].name} is missing, or of another size{more}"


@dataclass(frozen=True, slots=True)
class StagedFolder:
    """The folder `DEST/dlio/<copy>`; holds paths only, so it may be shared and pickled.

    Attributes:
        dest: the folder that the user named.
        copy: the name of the copy.
        share: the name of the part that one of several nodes copies into the same folder; "" if one copies all.
        user: the id of the user who is to own the copy; None if any owner will do.
        path: the data set's folder.
    """

    dest: Path
    copy: str
    share: str = ""
    user: int | None = field(default=None, compare=False)
    path: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.dest.joinpath(CACHE, self.copy))

    @property
    def claims(self) -> Below:
        """The folder of the claims on this copy, or on a share of it."""
        root, own = (self.dest.parent, (self.dest.name,)) if is_own(self.dest) else (self.dest, ())
        share = (self.share,) if self.share else ()
        return Below(root, (*own, CACHE, CLAIMS, self.copy, *share), self.user)

    @property
    def marker(self) -> Path:
        """The file that marks the folder as dlio's."""
        return self.path.joinpath(CONTROL, MARKER)

    def has(self, file: File) -> bool:
        """Returns whether a file exists under its final name, which it gets only once it is verified."""
        path = os.path.join(self.dest, CACHE, self.copy, file.name)  # noqa: PTH118  a fifth of the time of Path's /
        try:
            return os.stat(path).st_size == file.num_bytes  # noqa: PTH116  half the time of Path.stat
        except FileNotFoundError:
            return False

    def missing(self, wanted: Sequence[File]) -> list[File]:
        """Returns the files that the folder does not have, in order.

        Folders are listed first, and only files that exist are statted, many at a time if there are many.

        Raises:
            StorageError: the folder cannot be read.
        """
        with files.storage_errors("access", self.path):
            absent = self._not_listed([file.name for file in wanted])
            listed = [file for file in wanted if file.name not in absent]
            groups = [listed[first : first + _LOOKS] for first in range(0, len(listed), _LOOKS)]
            absent = absent.union(*in_threads(_THREADS, self._incomplete, groups, "dlio-look"))
        return [file for file in wanted if file.name in absent]

    def _incomplete(self, wanted: Sequence[File]) -> set[str]:
        return {file.name for file in wanted if not self.has(file)}

    def _not_listed(self, names: Sequence[str]) -> set[str]:
        """Returns those of `names` that are not in this folder, by listing its folders."""
        found: list[str] = []
        folders = {name.rpartition("/")[0] for name in names} if "/" in "".join(names) else {""}
        for folder in folders:
            with suppress(FileNotFoundError):
                listed = os.listdir(self.path / folder)  # noqa: PTH208  names are enough
                found += [f"{folder}/{name}" for name in listed] if folder else listed
        expected = (*names, *_OTHERS)
        if len(found) == len(expected) and sum(map(hash, found)) == sum(map(hash, expected)):
            return set()  # two lists have the same sum once in 2^64, and sets take twice the time
        return set(names).difference(found)

    def holds(self, wanted: Sequence[File]) -> bool:
        """Returns whether the copy is complete: it has the manifest, undamaged, and the names of all files `wanted`.

        Folders are listed, so that a million files take a second.

        Raises:
            StorageError: the folder cannot be read.
        """
        with files.storage_errors("access", self.path), suppress(FileNotFoundError, PermissionError):
            if self.marked_as() != self.copy or not self.is_published():
                return False
            return not self._not_listed([file.name for file in wanted])
        return False

    def marked_as(self) -> object:
        """Returns the name in the marker; None if the marker does not exist or is not complete."""
        return self._marked().get("copy")

    def origin(self) -> str:
        """Returns the source that the marker names; raises UsageError if it names none."""
        named = self._marked().get("source")
        if not isinstance(named, str) or not (is_url(named) or Path(named).is_absolute()):
            problem = f"{self.marker} names {named!r} as the source of {self.path}, not an absolute path or URL"
            raise UsageError(f"{problem}: name the source with --from")
        return named

    def _marked(self) -> dict[str, Any]:
        with suppress(OSError, ValueError, RecursionError), OpenFolder.at(self.path / CONTROL) as control:
            data, status = control.read(MARKER)
            if status.st_uid == control.owner and isinstance(found := json.loads(data), dict):
                return found
        return {}

    def has_manifest(self) -> bool:
        """Returns whether the manifest, which is published last, exists and this user may read it.

        Raises:
            StorageError: the folder cannot be read.
        """
        with files.storage_errors("access", self.path), suppress(PermissionError):
            return (self.path / NAME).exists() and os.access(self.path / NAME, os.R_OK)
        return False

    def is_published(self) -> bool:
        """Returns whether the manifest exists, may be read, and has the digest in its last line.

        Raises:
            StorageError: it cannot be read.
        """
        return self.has_manifest() and seal.is_intact(self.path / NAME)

    def touch(self) -> None:
        """Marks the copy as used now; has no effect on another user's copy."""
        with suppress(OSError):
            world.touch(self.marker)

    def begin(self, source: str) -> None:
        """Makes the folder of the copy, and marks it.

        Raises:
            StorageError: the folder cannot be made, or holds files that are not dlio's.
        """
        with files.storage_errors("create", self.path):
            self._make_ours(self.path, 0o700)  # its users may enter it when it is complete
            self._sync_above()
            without_lists(self.path)
            marked = self.marked_as()
            if not self.marker.exists() and any(path.name != CONTROL for path in self.path.iterdir()):
                raise StorageError(f"{self.path} holds files, but not dlio's marker {self.marker.name}: remove it")
            if marked not in (None, self.copy):
                raise StorageError(f"{self.path} is a copy of {marked}, under another name: remove it")
            self._make_ours(self.path / CONTROL, 0o755)
            self._clear_aside()
        if marked is None:
            files.publish_bytes(self._aside / MARKER, json.dumps({"copy": self.copy, "source": source}).encode())
            files.publish(self._aside / MARKER, self.marker)
        else:  # by a process that was killed before it synced this, maybe
            files.sync_folder(self.marker.parent)
        files.sync_folder(self.path)  # has the marker's folder before it has any file, or it would be nobody's

    @property
    def _aside(self) -> Path:
        return self.path.joinpath(CONTROL, ASIDE, self.share)

    def _clear_aside(self) -> None:
        """Makes the folder of the marker and the manifest before they are published; version 0.1 kept more there."""
        shutil.rmtree(self._aside, ignore_errors=True)
        files.make_folders(self.path / CONTROL, self._aside)

    def _make_ours(self, path: Path, mode: int) -> None:
        """Makes a folder and checks that only this user can change it; from then on nobody else can replace it."""
        path.mkdir(mode=mode, exist_ok=True)
        if not is_closed(path.lstat(), {os.geteuid() if self.user is None else self.user}, shut=True):
            raise TakenError(f"{path} belongs to another user, or others can change it: stage again")

    def finish(self, manifest: Manifest, names: Sequence[str], access: Access) -> None:
        """Syncs the files' names to the disk, then publishes the manifest.

        Args:
            manifest: of the copy; digests that it lacks are those found while the files were copied.
            names: of its files.
            access: who may read the manifest and enter the folders.

        Raises:
            StorageError: the file system refused.
        """
        manifest = Learned(self.path).applied(manifest)
        is_tree = manifest.format == TREE  # which is synced as a whole
        for folder in () if is_tree else self._folders(names):
            files.sync_folder(folder)
        last = self.path / CONTROL / NAME
        with files.storage_errors("create", self._aside):
            self._clear_aside()
        files.publish(manifest.save(self._aside), last)
        shutil.rmtree(self.path / CONTROL / ASIDE, ignore_errors=True)
        self._give([last, self.marker], names, access)
        if is_tree:
            restore(manifest, self.path)
        files.publish(last, self.path / NAME)

    def _sync_above(self) -> None:
        """Waits until the copy's own name is on the disk, or a loss of power might take all of it."""
        if is_own(self.dest):
            files.sync_folder(self.dest.parent)
        with files.storage_errors("sync", self.path.parent), suppress(PermissionError), open_dest(self.dest) as dest:
            world.fsync(dest.descriptor)  # if this user may not list it, others have made what lies there
            with dest.below(CACHE) as cache:
                world.fsync(cache.descriptor)

    def access(self) -> Access:
        """Returns who may read an existing copy, by the modes of its marker and folder.

        Raises:
            StorageError: its status cannot be read.
        """
        with files.storage_errors("access", self.path):
            marker = self.marker.lstat()
            return Access(0o600 | marker.st_mode & 0o044, marker.st_gid, self.path.lstat().st_mode & 0o044)

    def give(self, names: Sequence[str], access: Access) -> None:
        """Gives others access to an existing copy; has no effect on another user's copy.

        Raises:
            StorageError: the file system refused.
        """
        with suppress(PermissionError):
            path = self.path
            self._give([path / name for name in (*names, NAME)], names, access)

    def _give(self, paths: Iterable[Path], names: Sequence[str], access: Access) -> None:
        with files.storage_errors("change the mode of", self.path):
            for path in paths:
                access.give_file(path)
            for folder in (*self._folders(names), self.path / CONTROL):
                access.give_folder(folder)

    def _folders(self, names: Sequence[str]) -> list[Path]:
        """Returns the folders that hold files of these names, the copy's own first."""
        inner = {Path(folder) for folder in {name.rpartition("/")[0] for name in names}}  # far fewer than names
        path = self.path
        return sorted({path, *(path / parent for folder in inner for parent in (folder, *folder.parents))})

    def remove(self) -> None:
        """Removes the copy: the manifest first, so that the rest is not taken for complete, and the marker last.

        Files of other users are left, and no link is followed.

        Raises:
            StorageError: the folder is not dlio's, cannot be removed, or holds another user's files.
        """
        with files.storage_errors("remove", self.path), suppress(FileNotFoundError), open_cache(self.dest) as cache:
            if cache.look(self.copy) is None:
                return
            with cache.below(self.copy) as copy:
                if marker_of(copy) is None:
                    raise StorageError(f"{self.path} has no dlio marker, so dlio does not remove it: remove it by hand")
                copy.remove(NAME, copy.owner)
                left = [name for name in copy.names() if name != CONTROL and not copy.remove(name, copy.owner)]
                with copy.below(CONTROL) as control:
                    left += [
                        name for name in control.names() if name != MARKER and not control.remove(name, copy.owner)
                    ]
                if left:
                    raise StorageError(f"{self.path} holds another user's files, such as {left[0]!r}: they are left")
                world.fsync(copy.descriptor)  # a loss of power leaves no files without a marker, which nobody removes
                copy.remove(CONTROL, copy.owner)
            cache.rmdir(self.copy)
