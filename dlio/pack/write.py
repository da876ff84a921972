"""Writing one shard, in a worker: samples are read, checked, and written aside; then the files get their names."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlio.dataset import seal
from dlio.dataset.manifest import Shard
from dlio.errors import LauncherError
from dlio.io import files
from dlio.io.ground import temporary_base
from dlio.io.remote_files import RemoteFiles
from dlio.locking.owner import Owner, node_id
from dlio.pack.listing.base import Listing, Source
from dlio.pack.pace import NO_LIMITS, Limits, limited
from dlio.pack.plan import Place
from dlio.pack.recode import Recode
from dlio.pack.shard_progress import Row, counts
from dlio.pack.write_samples import OpenShard, Preparing, write_samples

ASIDE = ".dlio-packing"  # the folder of unfinished shards; only dlio creates and clears it
NOWHERE = ""  # no process publishes for others
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Writing:
    """How shards are written.

    Attributes:
        skip_bad: whether a bad sample is left out and noted, instead of ending the run.
        digest: the algorithm of the files' digests.
        limits: the limits of each worker on reading the source.
        publisher: `here()` of the process that publishes the shards of workers on its machine.
    """

    skip_bad: bool
    digest: str
    limits: Limits = NO_LIMITS
    publisher: str = NOWHERE


@dataclass(frozen=True, slots=True)
class WriteTask:
    """All that a worker needs to write one shard; picklable.

    Attributes:
        listing: the samples of this shard, in order.
        out: the data set's folder, or one for what is sent to a URL.
        inputs: a digest of the states of the shard's inputs.
        row: where to say how far the shard is.
        url: where the shard is sent to, "" for a folder.
        place: where in the shard's file a part goes; None for a whole shard.
    """

    name: str
    source: Source
    listing: Listing
    format: str
    out: Path
    recode: Recode
    writing: Writing
    inputs: str
    row: Row | None
    url: str = field(repr=False)
    place: Place | None

    @property
    def whole(self) -> Path | None:
        """The unfinished file of the shard that this is a part of."""
        return None if self.place is None else self.out / ASIDE / self.place.file

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard whose files are complete.

    Attributes:
        shard: its line of the manifest.
        out: the data set's folder.
        aside: the folder of the files; None once they are published.
        whole: the file that holds a part; it is synced first.
    """

    shard: Shard
    out: Path
    aside: Path | None
    whole: Path | None = None


def write_shard(task: WriteTask) -> WrittenShard:
    """Writes one shard, and publishes it unless the process that hands out the tasks does (see `dlio.pack.publish`).

    One that goes to a URL is sent there, with its line of the manifest (see `dlio.pack.upload`).

    Raises:
        SourceError: an input cannot be packed, and bad ones are not skipped.
        SchemaError: the format cannot hold a value.
        StorageError: the file system refused; nothing is left behind.
    """
    aside, is_left = _new_folder(task), False
    try:
        with limited(task.writing.limits):
            shard = _write(task, aside)
        written = WrittenShard(shard, task.out, aside, task.whole)
        is_left = task.writing.publisher != NOWHERE and task.writing.publisher == here()
        if task.url:
            _send(task.url, aside, shard)
        elif not is_left:
            publish_shard(written)
    finally:
        if not is_left:
            shutil.rmtree(aside, ignore_errors=True)
    log.info("%s: %d samples, %d bytes", shard.name, shard.num_samples, shard.num_bytes)
    return written if is_left else replace(written, aside=None)


def publish_shard(written: WrittenShard) -> Shard:
    """Gives the files of a shard that was written aside their names, and returns its line of the manifest.

    Raises:
        StorageError: the file system refused; nothing of it is left aside.
    """
    if written.aside is not None:
        try:
            if written.whole is not None:
                files.sync_file(written.whole)
            files.publish_all(written.aside, written.out, [file.name for file in written.shard.files])
        finally:
            shutil.rmtree(written.aside, ignore_errors=True)
    return written.shard


def _new_folder(task: WriteTask) -> Path:
    if task.url:  # another machine does not have `out`
        around = task.out
        if not around.is_dir():
            around = temporary_base()
        return Path(tempfile.mkdtemp(prefix=f"dlio-{task.name}.", dir=around))
    return new_aside(task.out, task.name)


def new_aside(out: Path, name: str) -> Path:
    """Returns a new folder below `out` for the unfinished files of a shard; raises StorageError."""
    aside = out / ASIDE / f"{name}.{Owner.current()}"
    with files.storage_errors("create", aside):
        aside.mkdir(parents=True)
    return aside


def _send(url: str, aside: Path, shard: Shard) -> None:
    store = RemoteFiles(url)
    for file in shard.files:
        store.put(file.name, aside / file.name)
    store.put(f"{ASIDE}/{shard.name}", seal.sealed_line(shard.to_json()))


def here() -> str:
    """Returns a name for this machine, this mount namespace and this user."""
    try:
        return f"{node_id()} {Path('/proc/self/ns/mnt').readlink()} {os.geteuid()}"
    except (OSError, LauncherError):
        return NOWHERE


def _write(task: WriteTask, aside: Path) -> Shard:
    listing, skip_bad = task.listing, task.writing.skip_bad
    prepared = Preparing.of(task.source.path, listing.schema, listing.image_fields, task.recode, skip_bad)
    part = (task.whole, range(task.place.begin, task.place.end)) if task.whole and task.place else None
    shard = OpenShard(aside, task.name, task.format, prepared, task.writing.digest, part)
    with files.storage_errors("write", aside), closing(shard):
        write_samples(task.source, listing, shard, counts(task.row))
        return shard.finish(task.inputs)
