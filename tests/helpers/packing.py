"""What a source holds, and what a folder holds after a pack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.pool import ShardPool
from dlio.pack.listing.base import Source
from dlio.pack.listing.image_files import ImageFiles
from dlio.sources import image_folder
from dlio.testing.container import content

__all__ = ["BYTE_IDENTICAL", "content", "file_states", "image_folder_as", "read_all", "samples", "stop_after"]

#: Formats whose shards are the same bytes for the same samples, whatever wrote them.
BYTE_IDENTICAL = ("tfrecord", "recordio", "webdataset", "squashfs")


def samples(root: Path) -> list[tuple[str, dict]]:
    """Returns key and fields of every sample of a packed data set, in order."""
    pool = ShardPool(Manifest.load(root))
    try:
        read = [pool.read(index) for index in range(pool.manifest.num_samples)]
    finally:
        pool.close()
    return [(sample.key, sample.fields) for sample in read]


def read_all(source: Source) -> list[dict]:
    """Returns the fields of every sample of a source, in order."""
    listing = source.listing()
    with source.reader(listing) as read:
        return [read(index).fields for index in range(len(listing))]


def image_folder_as(kind: type[ImageFiles], folder: Path) -> ImageFiles:
    """Returns the source of an image folder as another kind of it."""
    source = image_folder(folder)
    return kind(source.name, source.path, source.folder, source.listing)


def stop_after(count: int) -> Callable[[Shard], None]:
    """Returns what `pack` reports shards to, and is interrupted by when more than `count` are done."""
    reported: list[str] = []

    def report(shard: Shard) -> None:
        if len(reported) == count:
            raise KeyboardInterrupt
        reported.append(shard.name)

    return report


def file_states(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Returns of every path in a folder what changes when somebody writes it, replaces it or changes its rights."""
    states = {path: path.stat() for path in folder.rglob("*")}
    return {path: (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in states.items()}
