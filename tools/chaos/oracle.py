"""Invariants: no wrong byte under a final name, nothing lost, nothing deleted that is not dlio's."""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import dlio.cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.io.files import digest_file
from dlio.stage.copies.base_folder import LEASES, OWN
from dlio.stage.copies.blocks import Blocks
from dlio.stage.copies.folder import CONTROL
from dlio.stage.copies.live_folder import LiveFolder
from tools.chaos.process import Process
from tools.chaos.violation import Violation

_CODES = {0, 1, 2, 3, 4, 5, 130}
_TRACEBACK = "Traceback (most recent call last)"
Snapshot = dict[str, tuple[object, ...]]


def snapshot(*roots: Path) -> Snapshot:
    """Returns what lies below some folders: of each entry its mode, owner and content."""
    entries = [path for root in roots for path in (root, *root.rglob("*"))]
    return {str(path): _state(path) for path in entries}


def _state(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    content = ""
    if stat.S_ISREG(status.st_mode):
        content = digest_file(path)
    elif stat.S_ISLNK(status.st_mode):
        content = str(path.readlink())
    return status.st_mode, status.st_uid, content


def check_unchanged(before: Snapshot, after: Snapshot) -> None:
    """Raises Violation if a sentinel or a source is missing or differs; entries that were added do not count."""
    lost = [path for path in before if path not in after]
    differing = [path for path in before if path in after and before[path] != after[path]]
    if lost or differing:
        raise Violation(f"what dlio did not make was touched: lost {lost[:5]}, changed {differing[:5]}")


def check_end(process: Process) -> None:
    """Raises Violation if a process ended with a traceback, a code that is not dlio's, or a signal nobody sent."""
    text = process.said()
    if _TRACEBACK in text and not _interrupted_outside_main(process, text):
        raise Violation(f"{process} ended by a traceback{process.tail()}")
    if process.code not in _CODES and -(process.code or 0) not in process.sent:
        raise Violation(f"{process} ended with {process.code}, which is no exit code of dlio{process.tail()}")


def _interrupted_outside_main(process: Process, text: str) -> bool:
    """Returns whether an interrupt came before the command line began, or after it ended, so that Python handled it."""
    in_main = re.search(rf'"{re.escape(dlio.cli.__file__)}", line \d+, in main$', text, re.MULTILINE)
    return bool(process.sent) and "KeyboardInterrupt" in text and not in_main


def check_code(process: Process, *codes: int) -> None:
    """Raises Violation if a process that was not killed ended with another code than these."""
    if process.code not in codes:
        raise Violation(f"{process} should have ended with {codes}, not {process.code}{process.tail()}")


def copies(dest: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields the copies of a data set at DEST, and in its users' own places."""
    for place in (dest, *sorted(dest.glob(f"{OWN}*"))):
        yield from sorted((place / "dlio").glob(f"{manifest.content_id}*"))


def check_copies(dest: Path, manifest: Manifest, distrusted: Iterable[int] = ()) -> None:
    """Raises Violation if a file of a copy is wrong under its final name; users may spoil their own copies."""
    for copy in copies(dest, manifest):
        way = (copy, copy.parent, copy.parent.parent)
        if not {path.lstat().st_uid for path in way} & set(distrusted):
            check_names(copy, manifest)


def check_names(folder: Path, manifest: Manifest) -> None:
    """Raises Violation if a file that has its final name is not what the manifest says; others may end it."""
    digests = {file.name: file.digest for shard in manifest.shards for file in shard.files}
    whole = (folder / NAME).exists()
    here = Manifest.load(folder) if whole else manifest
    try:
        found = [path for path in folder.rglob("*") if path.relative_to(folder).parts[0] != CONTROL and path.is_file()]
        for path in found:
            name = str(path.relative_to(folder))
            if name in digests and digest_file(path) != digests[name]:
                raise Violation(f"{path} has a final name, and not the content that the manifest tells")
    except OSError as error:
        if error.errno == errno.ENOENT:  # another process removes it
            return
        raise
    wanted = {file.name for shard in here.shards_here for file in shard.files}
    missing = wanted - {str(path.relative_to(folder)) for path in found}
    if whole and missing and (folder / NAME).exists():
        raise Violation(f"{folder} has its manifest, and lacks {sorted(missing)[:5]}")


def check_whole(folder: Path, manifest: Manifest) -> None:
    """Raises Violation if a folder does not hold the whole data set."""
    if not (folder / NAME).exists():
        raise Violation(f"{folder} should be a whole copy, and has no manifest: {[*map(str, folder.glob('*'))][:5]}")
    if Manifest.load(folder).content_id != manifest.content_id:
        raise Violation(f"{folder} should hold {manifest.content_id}, and is {Manifest.load(folder).content_id}")
    check_names(folder, manifest)


def check_blocks(live: LiveFolder, manifest: Manifest) -> None:
    """Raises Violation if a block of an unfinished file is marked as present, and is not as in the source."""
    for file in files_of(manifest.shards):
        with suppress(FileNotFoundError, StorageError), live.unfinished(file).open("rb") as unfinished:
            missing = Blocks.open(live.blocks(file), file.num_bytes).missing(0, file.num_bytes)  # before the data
            found, expected = unfinished.read(), (manifest.root / file.name).read_bytes()
            starts = [0, *(end for _, end in missing)]
            stops = [*(begin for begin, _ in missing), file.num_bytes]
            for begin, end in zip(starts, stops, strict=True):
                if found[begin:end] != expected[begin:end]:
                    raise Violation(f"{unfinished.name} has wrong bytes in {begin}-{end}, marked as present")


def check_nothing_left(dest: Path, allowed: Iterable[Path]) -> None:
    """Raises Violation if something lies at DEST that is not `allowed`, nor a folder of it."""
    known = {path for each in allowed for path in (each, *each.parents)}
    known |= {
        path for leased in dest.rglob(f"{LEASES}/.*") for path in (leased, *leased.parents)
    }  # clean waits an hour
    left = [path for path in dest.rglob("*") if path not in known]
    if left:
        raise Violation(f"clean has left {[str(path) for path in left[:8]]}")
