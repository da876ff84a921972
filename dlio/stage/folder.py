"""The folder of a staged copy, and what lies in it.

    DEST/dlio/                        as open to other users as DEST is
    DEST/dlio/.claims/<copy>/         who is copying (dlio/claim.py)
    DEST/dlio/.leases/<copy>/         which jobs use it (lease.py)
    DEST/dlio/<copy>/.dlio/copy.json  the marker: this folder is dlio's, and may be removed by it
    DEST/dlio/<copy>/.dlio/aside/     files not whole yet, in a folder for each owner's token
    DEST/dlio/<copy>/...              the data set's files, each verified before it got its name
    DEST/dlio/<copy>/manifest.jsonl   comes last: all files are there

`<copy>` is the data set's content id, followed by the part it holds where that is not the whole. Where another user's
folder, copy or claim is in the way, DEST/dlio-u<uid> takes the place of DEST (trust.py).
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dlio import files
from dlio.claim_file import Claim
from dlio.errors import ManifestError, StorageError, UsageError
from dlio.manifest import NAME, File, Manifest

CONTROL = ".dlio"
MARKER = "copy.json"


@dataclass(frozen=True, slots=True)
class StagedFolder:
    """The folder `DEST/dlio/<copy>`; holds paths only, so it may be shared and pickled.

    Attributes:
        dest: the folder that the user named.
        copy: the name of the copy.
        share: the name of the part that one node of several brings into the same folder; "" where one brings all.
    """

    dest: Path
    copy: str
    share: str = ""

    @property
    def path(self) -> Path:
        """The data set's folder."""
        return self.dest / "dlio" / self.copy

    @property
    def claims(self) -> Path:
        """The folder of the claims on this copy, or on a share of it."""
        return self.dest / "dlio" / ".claims" / self.copy / self.share

    @property
    def leases(self) -> Path:
        """The folder of the leases on this copy."""
        return self.dest / "dlio" / ".leases" / self.copy

    @property
    def marker(self) -> Path:
        """The file that says that the folder is dlio's."""
        return self.path / CONTROL / MARKER

    @property
    def unfinished(self) -> Path:
        """The folder of all files that are not whole yet."""
        return self.path / CONTROL / "aside" / self.share

    def aside(self, claim: Claim) -> Path:
        """Returns the folder of the unfinished files of a claim's owner."""
        return self.unfinished / claim.token

    def has(self, file: File) -> bool:
        """Returns whether a file is there under its final name, which it only gets once it is whole and verified."""
        try:
            return os.stat(self.path / file.name).st_size == file.num_bytes  # noqa: PTH116  half the time of Path.stat
        except FileNotFoundError:
            return False

    def holds(self, wanted: Sequence[File]) -> bool:
        """Returns whether the copy is complete: the manifest, and each of the files `wanted`, by its name.

        Folders are listed and files not looked at one by one, so that a million files take a second.

        Raises:
            StorageError: the folder cannot be read.
        """
        if not self.has_manifest():
            return False
        missing = {file.name for file in wanted}
        for folder in {name.rpartition("/")[0] for name in missing}:
            with files.storage_errors("look at", self.path), suppress(FileNotFoundError):
                found = os.listdir(self.path / folder)  # noqa: PTH208  names are enough
                missing.difference_update([f"{folder}/{name}" for name in found] if folder else found)
        return not missing

    def has_manifest(self) -> bool:
        """Returns whether the manifest is there, which comes last.

        Raises:
            StorageError: the folder cannot be read.
        """
        with files.storage_errors("look at", self.path):
            return (self.path / NAME).exists()

    def touch(self) -> None:
        """Notes that the copy is used now; another user's copy keeps its time."""
        with suppress(OSError):
            os.utime(self.marker)

    def begin(self, source: str, mine: Claim, previous: Claim | None) -> Path:
        """Returns the folder for unfinished files, with those that the owner before left, if that one is surely over.

        An owner that only seems dead may wake up and go on writing: its files are given up, not taken over.

        Raises:
            StorageError: the folder cannot be made, or holds files without being dlio's.
        """
        aside = self.aside(mine)
        with files.storage_errors("create", self.path):
            strange = not self.marker.exists() and self.path.exists()
            if strange and any(path.name != CONTROL for path in self.path.iterdir()):
                raise StorageError(f"{self.path} holds files, but not dlio's marker {self.marker.name}: remove it")
            self.unfinished.mkdir(parents=True, exist_ok=True)
            if previous and previous.is_over and self.aside(previous).is_dir():
                self.aside(previous).rename(aside)
            for other in self.unfinished.iterdir():
                if other != aside:
                    shutil.rmtree(other, ignore_errors=True)
            aside.mkdir(exist_ok=True)
        if not self.marker.exists():
            files.publish_bytes(aside / MARKER, json.dumps({"copy": self.copy, "source": source}).encode())
            files.publish(aside / MARKER, self.marker)
        return aside

    def finish(self, manifest: Manifest, names: Iterable[str]) -> None:
        """Makes sure that the files' names are on the disk, then publishes the manifest.

        Raises:
            StorageError: the file system refused.
        """
        for folder in sorted({(self.path / name).parent for name in names}):
            files.sync_folder(folder)
        last = self.path / CONTROL / NAME
        with files.storage_errors("create", self.unfinished):
            self.unfinished.mkdir(parents=True, exist_ok=True)
        files.publish(manifest.save(self.unfinished), last)
        shutil.rmtree(self.unfinished, ignore_errors=True)
        files.publish(last, self.path / NAME)

    def remove(self) -> None:
        """Removes the copy; the manifest first, so that nobody takes what is left for whole, and the marker last.

        Raises:
            StorageError: the folder is not dlio's, or cannot be removed.
        """
        if not self.path.exists():
            return
        if not self.marker.exists():
            raise StorageError(f"{self.path} bears no dlio marker and is left alone: remove it by hand")
        with files.storage_errors("remove", self.path):
            (self.path / NAME).unlink(missing_ok=True)
            for entry in self.path.iterdir():
                if entry.name != CONTROL:
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            shutil.rmtree(self.path / CONTROL / "aside", ignore_errors=True)
            for entry in self.marker.parent.iterdir():
                if entry.name != MARKER:
                    entry.unlink()
            self.marker.unlink()
            self.marker.parent.rmdir()
            self.path.rmdir()


def open_up(dest: Path) -> None:
    """Makes DEST/dlio and its folders of claims and leases, as open to other users as DEST itself is.

    Raises:
        StorageError: a folder cannot be made.
    """
    with files.storage_errors("create", dest / "dlio"):
        dest.mkdir(parents=True, exist_ok=True)
        mode = dest.stat().st_mode & 0o1777
        for folder in (dest / "dlio", dest / "dlio" / ".claims", dest / "dlio" / ".leases"):
            make_open(folder, mode)


def make_open(folder: Path, mode: int) -> None:
    """Makes a folder with a mode that the umask does not narrow; one that is there is left as it is.

    The mode is set through the folder itself and never its name, where another user may have put a link meanwhile.

    Raises:
        OSError: the folder cannot be made.
    """
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    made = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(made).st_uid == os.geteuid():
            os.fchmod(made, mode)
    finally:
        os.close(made)


def check_dest(manifest: Manifest, dest: Path) -> None:
    """Refuses a destination inside the data set that is to be copied.

    Raises:
        UsageError: `dest` is the data set's own folder, or lies below it.
    """
    if dest.resolve().is_relative_to(manifest.root.resolve()):
        raise UsageError(f"{dest} lies in the data set {manifest.root} itself: stage to a folder outside it")


def check_names(manifest: Manifest) -> None:
    """Refuses a data set whose files would overwrite the copy's own.

    Raises:
        ManifestError: a file is named like the manifest, lies in dlio's own folder, or is listed twice.
    """
    names = [file.name for shard in manifest.shards for file in shard.files]
    reserved = [name for name in names if name == NAME or name.partition("/")[0] == CONTROL]
    if reserved or len(set(names)) < len(names):
        name = reserved[0] if reserved else Counter(names).most_common(1)[0][0]
        raise ManifestError(f"{manifest.root / NAME}: the file name {name!r} is reserved or listed twice")
