"""Going on where a pack was stopped: what is finished, the partial manifest, and what killed workers left behind."""

from __future__ import annotations

import shutil
import socket
from contextlib import suppress
from pathlib import Path

from dlio import files, manifest
from dlio.errors import StorageError, UsageError
from dlio.manifest import Manifest, Shard
from dlio.pack.write import ASIDE

INDEXED = "index"  # the origin of a data set whose shards other tools made


def finished_shards(plan: Manifest, out: Path) -> dict[str, Shard]:
    """Returns the shards of the planned data set that `out` holds already, by name.

    Raises:
        UsageError: `out` holds another data set, or other files.
    """
    complete = (out / manifest.NAME).exists()
    found = Manifest.load(out) if complete else manifest.read_partial(out)
    if found is None:
        foreign = [path.name for path in _entries(out) if path.name != ASIDE and path not in _unpublished(out)]
        if foreign:
            what = f"{foreign[0]!r} and {len(foreign) - 1} more" if len(foreign) > 1 else repr(foreign[0])
            raise UsageError(f"{out} holds {what}, which dlio has not packed: give an empty or a new folder")
        return {}
    if manifest.header(found) != manifest.header(plan):
        state = "another data set" if complete else "an unfinished pack of another data set or with other options"
        raise UsageError(f"{out} holds {state} ({_summary(found)}): give another folder, or --overwrite to replace it")
    whole = [shard for shard in found.shards if complete or _is_whole(out, shard)]
    return {shard.name: shard for shard in whole}


def _unpublished(out: Path) -> list[Path]:
    """Returns the manifests that a killed run was writing aside."""
    return list(out.glob(f".{manifest.NAME}*.tmp"))


def _summary(found: Manifest) -> str:
    return f"{found.format}, {found.num_samples} samples from {found.origin.get('path', 'elsewhere')}"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(error.errno, f"cannot list {folder}: {error.strerror}") from error


def _is_whole(out: Path, shard: Shard) -> bool:
    try:
        return all((out / file.name).stat().st_size == file.num_bytes for file in shard.files)
    except OSError:
        return False


def remove_packed(out: Path) -> None:
    """Removes the data set in `out`, finished or not: the files that its manifest names, and nothing else.

    Raises:
        StorageError: a file cannot be removed.
        UsageError: it is of shards that other tools made, and `dlio index` found.
    """
    complete = (out / manifest.NAME).exists()
    found = Manifest.load(out) if complete else manifest.read_partial(out)
    if found is not None and found.origin.get("source") == INDEXED:
        raise UsageError(f"{out} holds shards that other tools made, which dlio does not remove: give another folder")
    with files.storage_errors("remove the data set in", out):
        (out / manifest.NAME).unlink(missing_ok=True)  # first, so that what is left is never taken for a data set
        for file in [file for shard in found.shards for file in shard.files] if found else []:
            path = out / file.name
            path.unlink(missing_ok=True)
            if path.parent != out and path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()
        (out / manifest.PARTIAL_NAME).unlink(missing_ok=True)
    clear_aside(out)


def clear_aside(out: Path) -> None:
    """Removes what killed workers of this machine have left unfinished; a pack that still runs keeps its own."""
    host = socket.gethostname()
    for folder in (out / ASIDE).glob("*"):
        _, _, owner = folder.name.partition(".")
        name, _, pid = owner.rpartition(".")
        if name == host and pid.isdigit() and not _is_alive(pid):
            shutil.rmtree(folder, ignore_errors=True)
    for path in _unpublished(out):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or another run is at work in it
        (out / ASIDE).rmdir()


def _is_alive(pid: str) -> bool:
    """Tells whether a process runs; one that has ended and that nobody has waited for yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


class PartialManifest:
    """Appends the line of each finished shard to `manifest.jsonl.partial`, on the disk before it counts."""

    def __init__(self, out: Path, started: Manifest) -> None:
        """Opens the partial manifest of `out` anew, with the header and the shards of `started`.

        Raises:
            StorageError: it cannot be written.
        """
        self._path = out / manifest.PARTIAL_NAME
        lines = [manifest.header(started), *(shard.to_json() for shard in started.shards)]
        files.publish_bytes(self._path, "".join(map(manifest.dump_line, lines)).encode())
        with files.storage_errors("write", self._path):
            self._file = self._path.open("ab", buffering=0)

    def append(self, shard: Shard) -> None:
        """Adds a shard that is published.

        Raises:
            StorageError: the file system refused.
        """
        line = manifest.dump_line(shard.to_json()).encode()
        with files.storage_errors("write", self._path):
            while line:  # an almost full disk takes a part
                line = line[self._file.write(line) :]
        files.sync_file(self._path)

    def __enter__(self) -> PartialManifest:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
