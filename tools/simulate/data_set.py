"""The data set of a simulation: real files of drawn bytes, and what each byte must be."""

from __future__ import annotations

from functools import cache
from hashlib import shake_128
from pathlib import Path

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.io.files import digest_bytes

_SAMPLE_BYTES = 20_000  # a file of fewer is a sample


@cache
def drawn(number: int, size: int) -> bytes:
    """Returns the bytes of a file."""
    return shake_128(f"{number} of {size}".encode()).digest(size)


class DataSet:
    """A data set of shards of one file each.

    Args:
        folder: it is written to.
        sizes: of the files, in bytes.

    Attributes:
        manifest: of it.
        contents: of the files, by their names.
    """

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        self.contents: dict[str, bytes] = {}
        shards = []
        for number, size in enumerate(sizes):
            name, data = f"shard-{number:05d}.bin", drawn(number, size)
            (folder / name).write_bytes(data)
            (folder / name).chmod(0o600)
            self.contents[name] = data
            shards.append(Shard(name[:-4], 1 + size // _SAMPLE_BYTES, (File(name, size, digest_bytes(data)),)))
        self.manifest = Manifest("tfrecord", Schema.of({"image": "bytes"}, (), 0), tuple(shards), {}, folder)
        self.manifest.save(folder)

    def place_of(self, sample: int) -> tuple[File, int, int]:
        """Returns the file of a sample, and the range of its bytes there."""
        number, record = self.manifest.locate(sample)
        shard = self.manifest.shards[number]
        begin, end = (each * shard.files[0].num_bytes // shard.num_samples for each in (record, record + 1))
        return shard.files[0], begin, end
