"""The files of shards: which exist, since the records can be separate files, such as images in their folder."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from pathlib import Path

from dlio import formats
from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.shard import TABLE_SUFFIX
from dlio.errors import CorruptRecordError, StorageError
from dlio.formats import ApartFormat
from dlio.formats.layouts.file_list import FOLDER, SUFFIX, FileList
from dlio.io.arrivals import Arrivals
from dlio.io.files import digest_file, read_blocks

_log = logging.getLogger(__name__)
_BASE = re.compile(r"base[0-9]+")  # a link to the set that the records are of


def is_apart(manifest: Manifest, shard: Shard) -> bool:
    """Returns whether the records of a shard are separate files, so that its first file is not there.

    Only formats that dlio never writes, and imported modules of other packages, have such shards: a copy is staged
    without the packages that its format needs.
    """
    name = manifest.format
    if name not in formats.read_only_names() and name not in sys.modules:
        return False
    container, first = formats.load(name), shard.files[0]
    if not isinstance(container, ApartFormat):
        return False
    return not first.digest or container.lies_apart(manifest.root / first.name)  # a copy has been verified


def advice_if_lost(path: Path) -> str:
    """Returns what to do where a file of a shard is missing: its link is broken, or it never existed; else ''."""
    if base := next((each for each in path.parents if _BASE.fullmatch(each.name) and each.is_symlink()), None):
        source = f"{base} points to {os.path.realpath(base)}"
        return f": {source}, which was indexed or made again, or was removed: make this set again from it"
    if path.suffix == SUFFIX or not path.with_suffix(SUFFIX).exists():
        return ""
    link = path.parent / FOLDER
    return (
        f", nor is {link}, the link to the folder of indexed files: restore it, index the files again, or stage the "
        "copy again"
    )


def files_here(manifest: Manifest, shard: Shard) -> tuple[File, ...]:
    """Returns the files of a shard that are at the manifest's root."""
    return shard.files[1:] if is_apart(manifest, shard) else shard.files


def list_of(manifest: Manifest, shard: Shard) -> tuple[FileList, Path]:
    """Returns the list of the files of a shard that `is_apart`, and their folder.

    Raises:
        CorruptRecordError: the list is damaged.
        StorageError: it cannot be read.
    """
    path = manifest.root / shard.files[0].name
    return FileList.read(path.with_suffix(SUFFIX), manifest.schema), path.parent / FOLDER


def contents_of(manifest: Manifest, shard: Shard) -> list[tuple[Path, Callable[[], Iterable[bytes | memoryview]]]]:
    """Returns all that is read of a shard: paths, each with what reads the content in blocks.

    That of a file on its own raises CorruptRecordError if it has changed since it was listed; all raise StorageError.

    Raises:
        CorruptRecordError, StorageError: as `list_of`.
    """
    here = [manifest.root / file.name for file in files_here(manifest, shard)]
    found: list[tuple[Path, Callable[[], Iterable[bytes | memoryview]]]]
    found = [(path, partial(read_blocks, path)) for path in here]
    if len(here) < len(shard.files):
        files, folder = list_of(manifest, shard)
        for index in range(len(files)):
            found.append((folder / files.name(index), partial(_whole, files, index, str(folder))))
    return found


def _whole(files: FileList, index: int, folder: str) -> list[bytes]:
    return [files.read_file(index, folder)]


def paths_of(manifest: Manifest, shard: Shard) -> list[Path]:
    """Returns the paths of all that is read of a shard; raises as `list_of`."""
    return [path for path, _ in contents_of(manifest, shard)]


def checked_files(manifest: Manifest, shard: Shard, filling: Arrivals | None = None) -> list[Path]:
    """Returns the files of `shard`, whose sizes are those in the manifest, except for those that are still arriving.

    Raises:
        StorageError: a file is missing.
        CorruptRecordError: a file has another size.
    """
    arriving = _arriving(manifest, shard, filling) if filling is not None else ()
    here = files_here(manifest, shard)
    for file in here:
        if file.name not in arriving:
            check_size(manifest.root / file.name, file.num_bytes, shard)
    return [manifest.root / file.name for file in shard.files]


def _arriving(manifest: Manifest, shard: Shard, filling: Arrivals) -> Collection[str]:
    """Returns the files that may be read while they arrive, once the others are here.

    Without checksums of its samples a shard is read when it is whole, and so is one of another package's format, which
    may open files by itself.
    """
    names = [file.name for file in shard.files]
    if "." not in manifest.format and any(name.endswith(TABLE_SUFFIX) for name in names):
        return filling.prepare(names)
    filling.complete(names)
    return ()


def check_base(root: Path, shard: Shard, table: File | None) -> None:
    """Compares a shard behind a link, whose folder may change: its table has the checksums of the samples.

    All of a shard without a table is read.

    Raises:
        CorruptRecordError: it differs from what the set in the folder `root` was made of.
        StorageError: it is missing, or cannot be read.
    """
    link, slash, _ = shard.files[0].name.partition("/")
    if not slash or not (root / link).is_symlink():
        return
    if table is None:
        _tell_of_whole(root / link)
    for file in [table] if table else shard.files:
        path = root / file.name
        check_size(path, file.num_bytes, shard)
        if digest_file(path, file.digest.partition(":")[0]) != file.digest:
            raise CorruptRecordError(path, f"it is not what this set was made of{advice_if_lost(path)}")


@cache  # once in a process for each link
def _tell_of_whole(link: Path) -> None:
    problem = "shards without a table of their samples, so each process reads all of a shard when it opens it"
    _log.warning("%s points to %s: pack them again, or copy the files with dlio stage", link, problem)


def check_size(path: Path, num_bytes: int, shard: Shard) -> None:
    """Checks a shard's file before it is used.

    Raises:
        StorageError: it is not there.
        CorruptRecordError: it has another size than the manifest says.
    """
    try:
        found = path.stat().st_size
    except FileNotFoundError as error:
        if not shard.nodes:
            problem = f"cannot open the shard's file {path}: {error.strerror}{advice_if_lost(path)}"
            raise StorageError(error.errno, problem) from error
        nodes = f"node{'s' * (len(shard.nodes) > 1)} {', '.join(map(str, shard.nodes))}"
        advice = (
            "read it on that node, with a dlio loader in a job with this number of nodes, or stage the whole data set "
            "to each node"
        )
        raise StorageError(error.errno, f"{shard.name} is on {nodes}: {path} is not here; {advice}") from error
    except OSError as error:
        raise StorageError(error.errno, f"cannot open the shard's file {path}: {error.strerror}") from error
    if found != num_bytes:
        raise CorruptRecordError(path, f"expected {num_bytes} bytes, found {found}: restore the file or stage it again")
