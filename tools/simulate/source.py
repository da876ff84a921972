"""The source of a simulation: a small data set on a shared disk that the real `MountedFolder` reads.

All nodes share its rate, and each read is counted by blocks. It can be slow, fail, change, or disappear.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.io.files import digest_bytes
from tools.simulate.disk import FAULTS, Disk

COUNTED_BYTES = 16 << 10  # of a block whose reads are counted

#: What can go wrong with the source, next to what can go wrong with any disk.
SOURCE_FAULTS = {
    **{name: text for name, (_, text) in FAULTS.items() if name not in ("full", "quota", "eio-write", "eio-sync")},
    "changed": "a file gets other bytes and another time",
    "gone": "a file is not there",
}


def make(root: Path, sizes: Sequence[Sequence[int]], name: str = "data") -> Manifest:
    """Writes a data set, and returns its manifest.

    Args:
        root: an empty folder.
        sizes: the bytes of each shard's files, the largest first.
        name: decides the content.
    """
    shards = []
    for number, each in enumerate(sizes):
        files = []
        for position, num_bytes in enumerate(each):
            file = f"{name}-{number:05}.{'tfrecord' if position == 0 else f'index{position}'}"
            data = content(file, num_bytes)
            (root / file).write_bytes(data)
            files.append(File(name=file, num_bytes=num_bytes, digest=digest_bytes(data)))
        shards.append(
            Shard(name=f"{name}-{number:05}", num_samples=max(1, each[0] // COUNTED_BYTES), files=tuple(files))
        )
    manifest = Manifest("tfrecord", Schema.of({"image": "bytes"}), tuple(shards), root=root)
    manifest.save(root)
    return manifest


def content(name: str, num_bytes: int) -> bytes:
    """Returns the bytes of a file: they look random, and depend on its name only."""
    return hashlib.shake_128(name.encode()).digest(num_bytes)


class Source:
    """The source's faults, and what was read of it.

    Args:
        manifest: the data set.
        disk: that it lies on.
    """

    def __init__(self, manifest: Manifest, disk: Disk) -> None:
        self.manifest, self._disk = manifest, disk
        self._files = {file.name: file for shard in manifest.shards for file in shard.files}
        self._reads = Counter[tuple[str, int]]()
        self._spoilt: dict[str, tuple[bytes, int]] = {}
        self.bytes_read = 0

    def note_read(self, disk: Disk, path: str, offset: int, count: int) -> None:
        """Counts a read; called by `Storage`."""
        name = path.rpartition("/")[2]
        if disk is self._disk and name in self._files:
            self.bytes_read += count
            for block in range(offset // COUNTED_BYTES, -(-(offset + count) // COUNTED_BYTES)):
                self._reads[name, block] += 1

    @property
    def total_bytes(self) -> int:
        """The size of the data set."""
        return self.manifest.num_bytes

    def most_read(self) -> tuple[int, str, int]:
        """Returns how often the block was read that was read most, its file, and its number there."""
        (name, block), times = max(self._reads.items(), key=lambda item: (item[1], item[0]), default=(("", 0), 0))
        return times, name, block

    def inject(self, kind: str, amount: int) -> None:
        """Begins a fault; see SOURCE_FAULTS. Of `changed` and `gone`, the amount decides which file."""
        if kind not in ("changed", "gone"):
            self._disk.inject(kind, amount)
            return
        names = sorted(self._files)
        name = names[amount % len(names)]
        path = self.manifest.root / name
        if name not in self._spoilt and path.exists():
            self._disk.note(kind, name)
            self._spoilt[name] = path.read_bytes(), path.stat().st_mtime_ns
            if kind == "gone":
                path.unlink()
            else:
                path.write_bytes(content(f"{name} changed", self._files[name].num_bytes))
                os.utime(path, ns=self._disk.times())

    @property
    def spoilt(self) -> frozenset[str]:
        """The names of the files that are changed or gone."""
        return frozenset(self._spoilt)

    def heal(self) -> None:
        """Ends all faults; files have their bytes again."""
        self._disk.heal()
        for name, (data, changed) in self._spoilt.items():
            path = self.manifest.root / name
            path.write_bytes(data)
            os.utime(path, ns=(changed, changed))
        self._spoilt.clear()
