"""Continuing a stopped pack: the contents of a folder, the partial manifest, and the leftovers of killed workers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dlio.dataset import manifest, seal
from dlio.dataset.location import STATS_NAME
from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.shard import files_of
from dlio.errors import DigestError, ManifestError, UsageError
from dlio.io import files
from dlio.io.ground import check_ground
from dlio.io.open_folder import OpenFolder
from dlio.locking.claim import exclusively
from dlio.locking.owner import Owner
from dlio.pack.plan import shard_number
from dlio.pack.prefetch import side_by_side
from dlio.pack.write import ASIDE

CLAIMS = "claims"  # below ASIDE: who is packing
INDEXED = "index"  # the origin of a data set whose shards other tools made
NEXT = "next"  # below ASIDE: the data set that will replace the one in the folder


@dataclass(frozen=True, slots=True)
class FolderContents:
    """The contents of a folder to pack into.

    Attributes:
        out: the folder.
        published: the data set in the folder.
        partial: the unfinished data set of an interrupted run, if it published anything.
        names: the paths of all files below the folder that dlio packed, as manifests name them.
        foreign: the names of other files and folders.
        sizes: the sizes of the files in bytes, at a URL; None in a folder, where they are looked up.
    """

    out: Path
    published: Manifest | None
    partial: Manifest | None
    names: frozenset[str]
    foreign: list[str]
    sizes: Mapping[str, int] | None = None

    @classmethod
    def look(cls, out: Path) -> FolderContents:
        """Returns the contents of the folder `out`, which may be missing.

        Raises:
            ManifestError: a manifest there is damaged.
            StorageError: the folder cannot be read.
            UsageError: `out` is not a folder.
        """
        if out.exists() and not out.is_dir():
            raise UsageError(f"{out} is a file: give the name of a folder to write")
        try:
            published, coming = (
                Manifest.load(folder) if (folder / manifest.NAME).exists() else None
                for folder in (out, out / ASIDE / NEXT)  # a run may have been killed when it moved the second
            )
            partial = manifest.read_partial(out)
        except ManifestError as error:
            advice = f"so dlio does not know which files are its own: remove {out} yourself, or give another folder"
            raise ManifestError(f"{error}; {advice}") from error
        unlisted = _unlisted(out, partial)
        if partial is not None and not (partial.shards or unlisted):
            partial = None
        names = names_of(published) | names_of(partial) | names_of(coming) | unlisted
        own = {manifest.NAME, manifest.PARTIAL_NAME, STATS_NAME, ASIDE, *(path.name for path in _unpublished(out))}
        own |= {name.partition("/")[0] for name in names}
        return cls(out, published, partial, names, [name for name in _entries(out) if name not in own])

    def is_of(self, plan: Manifest, inputs: Mapping[str, str]) -> bool:
        """Returns whether this is the planned data set, or a part of it; `inputs` are the input states.

        If inputs changed, a published data set is another one. In a partial data set, shards of changed inputs count
        as unfinished.
        """
        if self.published is None:
            return self.partial is None or manifest.header(self.partial) == manifest.header(plan)
        same = all(shard.inputs == inputs.get(shard.name, "") for shard in self.published.shards)
        return same and manifest.header(self.published) == manifest.header(plan)

    def finished(self, plan: Manifest, inputs: Mapping[str, str], *, proved: bool = False) -> dict[str, Shard]:
        """Returns the complete shards of the planned data set, by name; if `proved`, those with the right digests."""
        found = {
            shard.name: shard
            for held in (self.published, self.partial)
            if held is not None and manifest.header(held) == manifest.header(plan)
            for shard in held.shards
        }
        wanted = [shard for name, shard in found.items() if shard.inputs == inputs.get(name, "")]
        if (sizes := self.sizes) is not None:
            return {each.name: each for each in wanted if all(sizes.get(f.name) == f.num_bytes for f in each.files)}
        whole = side_by_side(lambda shard: _is_whole(self.out, shard, proved), wanted)
        return {shard.name: shard for shard, is_whole in zip(wanted, whole, strict=True) if is_whole}

    def check_foreign(self) -> None:
        """Raises UsageError if the folder holds anything but what dlio packed."""
        if self.foreign:
            more = f" and {len(self.foreign) - 1} more" if len(self.foreign) > 1 else ""
            problem = f"{self.out} holds {self.foreign[0]!r}{more}, which dlio has not packed"
            raise UsageError(f"{problem}: give an empty or a new {'folder' if self.sizes is None else 'URL'}")


def names_of(found: Manifest | None) -> frozenset[str]:
    """Returns the names of the files of all shards of a manifest."""
    return frozenset(file.name for file in files_of(found.shards)) if found else frozenset()


def _unlisted(out: Path, partial: Manifest | None) -> frozenset[str]:
    """Returns the files of shards that an interrupted run may have published without listing them."""
    if partial is None:
        return frozenset()
    first = partial.origin.get("first_shard", 0)
    end = first + partial.origin.get("num_shards", sys.maxsize)  # which a `dlio.Writer` does not know
    numbered = ((name, shard_number(name)) for name in _entries(out))
    found = [out / name for name, number in numbered if number is not None and first <= number < end]
    files_of = [file for path in found for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return frozenset(str(file.relative_to(out)) for file in files_of)


def _unpublished(out: Path) -> list[Path]:
    """Returns the temporary manifests of a killed run."""
    return list(out.glob(f".{manifest.NAME}*.tmp"))


def _entries(folder: Path) -> list[str]:
    with files.storage_errors("list", folder):
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _is_whole(out: Path, shard: Shard, proved: bool) -> bool:
    try:
        if any((out / file.name).stat().st_size != file.num_bytes for file in shard.files):
            return False
        for file in shard.files if proved else ():
            files.check_digest(out / file.name, file.digest)
        return True
    except (DigestError, OSError):
        return False


@contextmanager
def working_on(out: Path, work: str) -> Generator[None, None, None]:
    """Makes the folder `out`, and in it that of unfinished shards, for the only run that works on it.

    Raises:
        StorageError: another run does, or the folder cannot be made, or others could replace it.
    """
    with files.storage_errors("create", out):
        (out / ASIDE).mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        check_ground(out, ASIDE)  # from now on no other user can replace it
        with exclusively(out / ASIDE / CLAIMS, work):
            try:
                yield
            finally:
                clear_aside(out, of_this_process=True)  # an interrupt comes between any two steps
    finally:
        clear_aside(out)


def clear_aside(out: Path, of_this_process: bool = False) -> None:
    """Removes the unfinished shards of workers that are surely dead, or of this process; other runs keep theirs.

    Those of workers of another machine, another container or an earlier boot stay until `clear_all_aside`.
    """
    me = Owner.current()
    with suppress(OSError), OpenFolder.at(out) as opened:
        with opened.below(ASIDE) as aside:
            for folder in aside.names():
                owner = Owner.from_text(folder.partition(".")[2])
                is_over = owner and (owner.is_alive() is False or (of_this_process and owner == me))
                if is_over and (status := aside.look(folder)):
                    aside.remove(folder, status.st_uid)
        opened.rmdir(ASIDE)  # another run may use it


def clear_manifests(out: Path) -> None:
    """Removes the temporary manifests of a killed run; for the only run working on `out`."""
    for path in _unpublished(out):
        with suppress(OSError):  # another user's
            path.unlink()


def clear_all_aside(out: Path) -> None:
    """Removes all unfinished shards, also of workers on other machines; for when all shards are complete."""
    for folder in (out / ASIDE).glob("*"):
        if folder.name != CLAIMS:
            shutil.rmtree(folder, ignore_errors=True)


class PartialManifest:
    """Appends the line of each finished shard, and its digest line, to `manifest.jsonl.partial`, and syncs the file."""

    def __init__(self, out: Path, started: Manifest) -> None:
        """Rewrites the partial manifest of `out` with the header and the shards of `started`, and opens it.

        Raises:
            StorageError: it cannot be written.
        """
        self._path = out / manifest.PARTIAL_NAME
        lines = [manifest.header(started), *(shard.to_json() for shard in started.shards)]
        files.publish_bytes(self._path, b"".join(map(seal.sealed_line, lines)))
        with files.storage_errors("write", self._path):
            self._file = self._path.open("ab", buffering=0)

    def append(self, shard: Shard) -> None:
        """Adds a published shard; raises StorageError."""
        line = seal.sealed_line(shard.to_json())
        with files.storage_errors("write", self._path):
            while line:  # an almost full disk writes only a part
                line = line[self._file.write(line) :]
        files.sync_file(self._path)

    def __enter__(self) -> PartialManifest:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
