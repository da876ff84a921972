"""Files and folders that are staged as they are: a list of them, `NAME.tree`, and the manifest of its files.

The list is JSON Lines: `{"tree": 1, "from": "/shared/env"}`, the real path of what is staged (of a URL also the version
that its server names), then an array for each file, folder and link, folders before what lies in them:

    ["folder", "env/bin", 493, 1700000000000000000, 100, 0, ""]        mode, time of its last change in ns, group id
    ["file", "env/bin/python3.12", 493, 1700000000000000000, 100, 6831704, ""]                     and size in bytes
    ["link", "env/bin/python", 511, 1700000000000000000, 100, 0, "python3.12"]                     and where it points

The content id is over this list, since nothing else is known before the files are read; two files of equal name, size
and time have different ids by their paths. The manifest of the source has
no digests of the files; those are found while a copy is made, and are in the manifest of the copy.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dlio.dataset import json_lines
from dlio.dataset.location import TREE, TREE_SUFFIX
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Schema
from dlio.dataset.shard import MAX_COUNT, Count, File, Shard, files_of
from dlio.errors import ManifestError
from dlio.io import files, limits
from dlio.io.sizes import format_date

LEAST_LINE = 24  # bytes, of an entry
_VERSION = 1
SMALL_BYTES = 64 << 10  # of a file that is fetched in one piece, and of a tree with others
_GROUP_BYTES, _GROUP_FILES = 4 << 20, 512  # which one node reads for all, and others get as one piece
_TIME_NS = 2 * 10**9  # what a file system may cut off of a time
_MODES = {"file": (0o755, 0o400), "folder": (0o755, 0o700), "link": (0o777, 0)}  # what is kept, what is always there

_Time = Annotated[int, msgspec.Meta(ge=-MAX_COUNT, le=MAX_COUNT)]


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A file, a folder or a link.

    Attributes:
        kind: which of these.
        path: below the folder of the copy; begins with the name of what is staged.
        mode: its permission bits: without set-user-id and the like, and without the right of others to write.
        time: when it was changed last, in ns since 1970.
        group: the id of its group.
        num_bytes: of a file.
        target: of a link; "" for other entries.
    """

    kind: Literal["file", "folder", "link"]
    path: str
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)]
    time: _Time
    group: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    num_bytes: Count = 0
    target: str = ""

    @classmethod
    def of(cls, path: str, status_mode: int, *, time: int, group: int, num_bytes: int = 0, target: str = "") -> Entry:
        """Returns an entry with the bits of its mode that are kept; raises ValueError for a device, socket or pipe."""
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
        if (kind := kinds.get(stat.S_IFMT(status_mode))) is None:
            raise ValueError(f"{path} is not a file, folder or link")
        kept, always = _MODES[kind]
        size = num_bytes if kind == "file" else 0
        return cls(kind, path, status_mode & kept | always, time, group, size, target)  # type: ignore[arg-type]


def encoded(entries: Sequence[Entry], source: str, version: str = "") -> bytes:
    """Returns the list of what lies at a real path or a URL; raises ManifestError if it is longer than dlio would read.

    Args:
        entries: the files, folders and links.
        source: the path or URL.
        version: what the server of a URL calls its content.
    """
    more = {"version": version} if version else {}
    head = json_lines.dense({"tree": _VERSION, "from": source, **more}) + b"\n"
    lines = [head] + [json_lines.dense(msgspec.to_builtins(entry)) + b"\n" for entry in entries]
    if (size := sum(map(len, lines))) > limits.manifest_bytes():
        problem = f"the list of {len(entries):,} files and folders in {source} has {size:,} bytes"
        raise ManifestError(f"{problem}: expected at most {limits.manifest_bytes():,}; stage its folders one by one")
    return b"".join(lines)


def decoded(data: bytes, path: Path) -> list[Entry]:
    """Returns the entries of a list; each is in a folder that was listed before it.

    Raises:
        ManifestError: it is damaged.
    """
    head, _, rest = data.partition(b"\n")
    if not _is_head(head):
        expected = f'{{"tree":{_VERSION},"from":"/..."}}'
        raise ManifestError(f"{path}, line 1: expected {expected}, found {head[:80]!r}: stage again")
    entries = [entry for some in json_lines.parse([rest], Entry, lambda some, _: some, path) for entry in some]
    around, seen = set[str](), set[str]()
    for number, entry in enumerate(entries, start=2):
        folder, slash, last = entry.path.rpartition("/")
        is_top = not slash and number == 2
        if not (is_top or folder in around) or last in ("", ".", "..") or entry.path in seen:
            raise json_lines.damaged(path, number, ValueError(f"{entry.path!r} is in no folder listed before it"))
        if problem := _impossible(entry):
            raise json_lines.damaged(path, number, ValueError(problem))
        around |= {entry.path} if entry.kind == "folder" else set()
        seen.add(entry.path)
    return entries


def _is_head(line: bytes) -> bool:
    try:
        head = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(head, dict) and head.get("tree") == _VERSION and isinstance(head.get("from"), str)


def _impossible(entry: Entry) -> str:
    """Returns what of an entry no list of dlio's has, since it may come from anybody; "" if nothing."""
    kept, always = _MODES[entry.kind]
    if entry.mode & ~kept or always & ~entry.mode:
        return f"{entry.path!r} has the mode {entry.mode:o}, which is never the mode of a {entry.kind}"
    try:
        return "a name holds a zero byte" if b"\0" in os.fsencode(entry.path + entry.target) else ""
    except UnicodeEncodeError:
        return f"nothing can have the name {entry.path!r}, or the target {entry.target!r}"


def entries_of(manifest: Manifest, root: Path) -> list[Entry]:
    """Returns the entries of the list of a copy in the folder `root`.

    Raises:
        ManifestError: the list is damaged, or is not of the files of the manifest.
        StorageError: it cannot be read.
    """
    table, *listed = files_of(manifest.shards) or [File("", 0, "")]
    path, most = root / table.name, min(table.num_bytes, limits.manifest_bytes())
    entries = decoded(files.read_regular(path, most), path) if table.name else []
    found = {(entry.path, entry.num_bytes) for entry in entries if entry.kind == "file"}
    is_named_so = entries and f"{entries[0].path}{TREE_SUFFIX}" == table.name
    if not is_named_so or found != {(file.name, file.num_bytes) for file in listed}:
        raise ManifestError(f"{path} lists other files than the manifest next to it: stage from an undamaged source")
    return entries


def differing(manifest: Manifest, root: Path) -> Iterator[tuple[str, str]]:
    """Yields what of a copy differs from its list, and how: modes, times of files, links, and missing folders.

    Raises:
        ManifestError, StorageError: the list is damaged, or cannot be read.
    """
    for entry in entries_of(manifest, root) if manifest.format == TREE else ():
        if problem := _problem(f"{root}/{entry.path}", entry):
            yield entry.path, problem


def num_files(manifest: Manifest) -> int:
    """Returns the number of files of what was staged; links, folders and the list of all do not count."""
    return sum(len(shard.files) for shard in manifest.shards[1:])


def added(manifest: Manifest, root: Path) -> list[str]:
    """Returns the paths below a folder of what lies in a copy and is not in its list; of a new folder only its own.

    Raises:
        ManifestError, StorageError: the list is damaged, or a folder cannot be read.
    """
    entries = entries_of(manifest, root) if manifest.format == TREE else []
    known, found = {entry.path for entry in entries}, list[str]()
    for entry in entries:
        path = root / entry.path
        if entry.kind == "folder" and path.is_dir() and not path.is_symlink():
            with files.storage_errors("list", path):
                names = os.listdir(path)  # noqa: PTH208  names are enough
            found += [name for name in (f"{entry.path}/{each}" for each in names) if name not in known]
    return sorted(found)


def _problem(path: str, entry: Entry) -> str:
    try:
        status = os.lstat(path)
        mode = status.st_mode
        target = os.readlink(path) if stat.S_ISLNK(mode) else ""  # noqa: PTH115  of text
    except OSError as error:
        return "" if entry.kind == "file" else f"cannot be checked: {error.strerror}"  # files are read anyway
    if entry.kind == "link":
        return "" if target == entry.target else f"expected a link to {entry.target!r}, found {target or 'no link'!r}"
    if entry.kind == "folder" and not stat.S_ISDIR(mode):
        return "expected a folder, found none"
    if entry.kind == "file" and abs(status.st_mtime_ns - entry.time) >= _TIME_NS:
        return f"was changed at {format_date(status.st_mtime_ns)}, expected {format_date(entry.time)}"
    if stat.S_IMODE(mode) & 0o707 != entry.mode & 0o707:  # the group's bits may have been dropped
        return f"expected the mode {entry.mode:o}, found {stat.S_IMODE(mode):o}"
    return ""


def manifest_of(entries: Sequence[Entry], table: bytes, around: Path) -> Manifest:
    """Returns the manifest of files that are in the folder `around`, without digests; the list is its first file."""
    listed = File(f"{entries[0].path}{TREE_SUFFIX}", len(table), files.digest_bytes(table))
    groups = enumerate(_groups([File(each.path, each.num_bytes, "") for each in entries if each.kind == "file"]))
    shards = [Shard("tree", 0, (listed,)), *(Shard(f"files-{number:05d}", 0, group) for number, group in groups)]
    return Manifest(TREE, Schema.of({}), tuple(shards), {}, around)


def _groups(listed: Sequence[File]) -> Iterator[tuple[File, ...]]:
    """Yields small files in groups, in order, and each of the others alone."""
    group: list[File] = []
    num_bytes = 0
    for file in listed:
        if file.num_bytes > SMALL_BYTES:
            yield (file,)
            continue
        if len(group) == _GROUP_FILES or num_bytes + file.num_bytes > _GROUP_BYTES:
            yield tuple(group)
            group, num_bytes = [], 0
        group.append(file)
        num_bytes += file.num_bytes
    if group:
        yield tuple(group)


def fetched(manifest: Manifest) -> list[tuple[File, ...]]:
    """Returns what is fetched of each shard: its files, or one file for all small ones of a folder, one after another.

    The name of such a group lies below that of the list, as no file's does.
    """
    if manifest.format != TREE:
        return [shard.files for shard in manifest.shards]
    table = next((file.name for file in files_of(manifest.shards)), "")
    return [
        (File(f"{table}/{shard.name}", shard.num_bytes, ""),) if _is_group(shard) else shard.files
        for shard in manifest.shards
    ]


def groups_of(manifest: Manifest) -> dict[str, tuple[File, ...]]:
    """Returns the files of each group by its name in `fetched`."""
    shards = zip(manifest.shards, fetched(manifest), strict=True)
    return {one[0].name: shard.files for shard, one in shards if len(one) < len(shard.files)}


def _is_group(shard: Shard) -> bool:
    """Returns whether the files of a shard are fetched as one: those of a copy, whose digests are known, are not."""
    is_new = not any(file.digest for file in shard.files)
    return len(shard.files) > 1 and shard.num_bytes <= _GROUP_BYTES and is_new


def slices(group: Sequence[File], data: memoryview, offset: int = 0) -> Iterator[tuple[File, int, memoryview]]:
    """Yields the files of a group, as far as they lie in memory that holds its bytes from `offset` on.

    Each comes with the offset of its part in the file, and that part of the memory; empty files come, too.
    """
    begin = -offset
    for file in group:
        first, last = max(begin, 0), min(begin + file.num_bytes, len(data))
        if first < last or not file.num_bytes:
            yield file, first - begin if file.num_bytes else 0, data[first : max(first, last)]
        begin += file.num_bytes


def group_digest(digests: Sequence[str]) -> str:
    """Returns the digest of a group: over those of its files; "" if one of them is not known."""
    return files.digest_bytes("".join(digests).encode()) if all(digests) else ""
