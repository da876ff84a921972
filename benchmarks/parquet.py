"""Hugging Face's Parquet in place: indexing; reading, compared with TFRecord shards; packing, with pyarrow's scan.

Usage:
    python benchmarks/parquet.py FOLDER [--images 4000] [--bytes 110000] [--rounds 5]

Everything is in the page cache. Each figure is the best of the rounds, which take turns, by the processor's time of
the process and its workers: other work on the machine then counts least. Needs pyarrow and protobuf.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import dlio
from dlio.dataset.manifest import Manifest
from dlio.dataset.pool import ShardPool
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.formats.readonly.parquet import Reader
from dlio.pack.index import index
from dlio.sources import open_source, packed

MEDIA = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_TICK = 0.01  # seconds that the system counts in
NAME = "train-00000-of-00001.parquet"


def make(folder: Path, count: int, num_bytes: int) -> None:
    """Writes the same images as plain Parquet, in groups of 100 MB, and compressed, 100 rows a group; as TFRecord."""
    draw, small = np.random.default_rng(0), io.BytesIO()
    Image.new("RGB", (8, 8)).save(small, "JPEG")
    sizes = draw.integers(num_bytes // 2, num_bytes * 2, count)
    images = [small.getvalue() + draw.bytes(int(size)) for size in sizes]  # what follows the image is not checked
    media = pa.array([{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(images)], MEDIA)
    rows = pa.table({"image": media, "label": pa.array([n % 1000 for n in range(count)])})
    for name in ("plain", "old"):
        (folder / name).mkdir(parents=True)
    group = max(1, (100 << 20) // num_bytes)
    pq.write_table(rows, folder / "plain" / NAME, compression="none", use_dictionary=["label"], row_group_size=group)
    pq.write_table(rows, folder / "old" / NAME, compression="snappy", row_group_size=100)
    index(folder / "plain", format="parquet", workers=1)
    dlio.pack(packed(folder / "plain"), folder / "tfrecord", format="tfrecord", engine="serial")


def scan_headers(folder: Path) -> int:
    """Finds every image by the headers; returns the bytes of the file."""
    shutil.rmtree(folder / "plain" / ".dlio-index")
    path = folder / "plain" / NAME
    Reader(path, IMAGE_CLASSIFICATION).close()
    return path.stat().st_size


def index_all(folder: Path) -> int:
    """Indexes, with digest and checksums of every image."""
    index(folder / "plain", format="parquet", workers=1, overwrite=True)
    return (folder / "plain" / NAME).stat().st_size


def read_in_bulk(folder: Path) -> int:
    """Reads and checks all images in a random order, as the loaders do, 256 at a time."""
    with closing(ShardPool(Manifest.load(folder))) as pool, pool.shard(0) as shard:
        order = np.random.default_rng(0).permutation(pool.manifest.num_samples)
        values = shard._values()
        assert values is not None
        return sum(sum(map(len, values.read(np.sort(order[at : at + 256]))[0])) for at in range(0, len(order), 256))


def read_one_by_one(folder: Path) -> int:
    """Reads and checks all samples, one at a time."""
    with closing(ShardPool(Manifest.load(folder))) as pool:
        return sum(len(pool.read(number).fields["image"]) for number in range(pool.manifest.num_samples))


def source_rows(path: Path) -> int:
    """Reads all rows as `pack --source parquet` does."""
    source = open_source(path, name="parquet")
    listing = source.listing()
    with source.reader(listing) as read:
        return sum(len(read(row).fields["image"]) for row in range(len(listing)))


def pyarrow_rows(path: Path) -> int:
    """Reads all rows by pyarrow alone, as Python's bytes, 100 at a time."""
    total = 0
    for batch in pq.ParquetFile(path).iter_batches(100, use_threads=False):
        images = pa.compute.struct_field(batch.column("image"), "bytes")
        total += sum(len(image.as_py()) for image in images)
    return total


def best(rounds: int, *calls: Callable[[], int]) -> list[float]:
    """Returns bytes a second of processor time of each call, the best of the rounds, in which they take turns."""
    rates = [0.0] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            began = sum(os.times()[:4])  # of this process and its workers
            num_bytes = call()
            rates[number] = max(rates[number], num_bytes / max(sum(os.times()[:4]) - began, _TICK))
    return rates


def main() -> None:
    """Prints the rates in GB/s."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--bytes", type=int, default=110_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    make(args.folder, args.images, args.bytes)
    plain, records, old = (args.folder / name for name in ("plain", "tfrecord", "old"))
    whole, headers = best(args.rounds, lambda: index_all(args.folder), lambda: scan_headers(args.folder))
    print(f"index              {whole / 1e9:.2f} GB/s, its headers only {headers / 1e9:.2f}")
    index_all(args.folder)
    for name, call in (("in bulk", read_in_bulk), ("one by one", read_one_by_one)):
        ours, theirs = best(args.rounds, lambda: call(plain), lambda: call(records))  # noqa: B023
        print(f"read {name:13} {ours / 1e9:.2f} GB/s, TFRecord {theirs / 1e9:.2f}: {ours / theirs:.2f}")
    ours, theirs = best(args.rounds, lambda: source_rows(old / NAME), lambda: pyarrow_rows(old / NAME))
    print(f"source parquet     {ours / 1e9:.2f} GB/s, pyarrow {theirs / 1e9:.2f}: {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
