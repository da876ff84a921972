"""Measures reading without decoding: CPU microseconds a record, ways interleaved, medians over rounds.

    python benchmarks/raw_records.py --data /tmp/bench
    python benchmarks/raw_records.py --data /tmp/bench --rounds 9 --formats tfrecord,hdf5
    python benchmarks/raw_records.py --data /tmp/bench --sets small --num-shards 400 --threads 2

The ways, each in batches of 256 records, in the order of the file and shuffled over all of it:

    mmap         a bare loop that copies each record out of one mapped file
    mmap, CRC    the same, and the CRC-32C of each
    lmdb get     a bare loop of `get`, copying, in one transaction
    FORMAT       dlio's Loader on shards of this format, with labels; it compares the CRC-32C of each record, as always

`big` are 6,000 JPEGs of 92 KB, `small` 20,000 PNGs of 1.8 KB (see benchmarks/pack.py); all in the page cache. The
consumer's thread reads, or `--threads` of the loader's. The first epoch, which opens the shards, is told apart.
"""

from __future__ import annotations

import argparse
import mmap
import random
import statistics
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import lmdb
from crc32c import crc32c
from images import SETS, make_set
from pack_peers import images_below

import dlio
from dlio import formats
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.sampling.rank_share import End

BATCH = 256
Places = list[tuple[int, int]]


def batches(items: list[Any], shuffled: bool) -> list[list[Any]]:
    """Returns the items in batches, in order or in a random one that is always the same."""
    items = random.Random(0).sample(items, len(items)) if shuffled else items
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


def copy_from_map(data: mmap.mmap, groups: list[Places]) -> None:
    """Copies every record."""
    for group in groups:
        made = [data[start:stop] for start, stop in group]
    del made


def copy_from_map_with_crc(data: mmap.mmap, groups: list[Places]) -> None:
    """Copies every record and computes its checksum."""
    for group in groups:
        made = [data[start:stop] for start, stop in group]
        crcs = list(map(crc32c, made))
    del made, crcs


def get_from_lmdb(environment: lmdb.Environment, groups: list[list[bytes]]) -> None:
    """Gets every record."""
    with environment.begin() as transaction:
        for group in groups:
            made = [transaction.get(key) for key in group]
    del made


def load(loader: Loader) -> None:
    """Runs an epoch."""
    for batch in loader:
        assert batch["image"]


def prepare(root: Path, subset: str, options: argparse.Namespace, shuffled: bool) -> dict[str, Callable[[], None]]:
    """Returns the ways to read a set, each as a call; what they read is made if it is not there."""
    files = [path for path, _ in images_below(root / subset)]
    flat = root / f"{subset}.flat"
    if not flat.exists():
        flat.write_bytes(b"".join(path.read_bytes() for path in files))
    stops = list(accumulate(path.stat().st_size for path in files))
    places = batches(list(pairwise([0, *stops])), shuffled)
    with flat.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    keys = batches([b"%08d" % number for number in range(len(files))], shuffled)
    ways: dict[str, Callable[[], None]] = {
        "mmap": partial(copy_from_map, data, places),
        "mmap, CRC": partial(copy_from_map_with_crc, data, places),
        "lmdb get": partial(get_from_lmdb, open_lmdb(root / f"{subset}.mdb", tuple(files)), keys),
    }
    names = options.formats.split(",")
    return ways | {name: partial(load, open_loader(root, subset, name, options, shuffled)) for name in names}


@cache
def open_lmdb(path: Path, files: tuple[Path, ...]) -> lmdb.Environment:
    """Returns an environment with the bytes of the files, under their numbers."""
    is_new = not path.exists()
    environment = lmdb.open(str(path), subdir=False, map_size=1 << 34, lock=False, readahead=False)
    if is_new:
        with environment.begin(write=True) as transaction:
            for number, file in enumerate(files):
                transaction.put(b"%08d" % number, file.read_bytes(), append=True)
    return environment


def open_loader(root: Path, subset: str, name: str, options: argparse.Namespace, shuffled: bool) -> Loader:
    """Returns dlio's loader of a format."""
    num_shards, num_threads = options.num_shards, options.threads
    out = root / (f"{subset}-{name}" if num_shards is None else f"{subset}-{name}-{num_shards}")
    if not (out / "manifest.jsonl").exists():
        dlio.pack(dlio.sources.image_folder(root / subset), out, format=name, num_shards=num_shards)
    source = ArrayBatches(PackedSamples(out))
    return Loader(source, BATCH, shuffle=shuffled, end=End.PAD, rank_and_size=lambda: (0, 1), num_workers=num_threads)


def cpu_seconds(call: Callable[[], None]) -> float:
    """Returns the CPU time of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def report(root: Path, subset: str, options: argparse.Namespace) -> None:
    """Prints a line for each way to read a set, in order and shuffled."""
    count = len(images_below(root / subset))
    for shuffled in (False, True):
        ways = prepare(root, subset, options, shuffled)
        first = {way: cpu_seconds(call) for way, call in ways.items()}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, call in ways.items():
                spent[way].append(cpu_seconds(call))
        middle = {way: statistics.median(seconds) for way, seconds in spent.items()}
        print(f"\n{root.name}, {'shuffled' if shuffled else 'in order'}, {count} records")
        for way, seconds in middle.items():
            micros = [1e6 * each / count for each in (seconds, min(spent[way]), first[way])]
            speed = f"{middle['mmap'] / seconds:5.2f} x mmap  {middle['mmap, CRC'] / seconds:5.2f} x mmap, CRC"
            print(f"  {way:12} {micros[0]:7.2f} us  least {micros[1]:7.2f}  first epoch {micros[2]:7.2f}  {speed}")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder to make the images and shards in")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default=",".join(formats.names()))
    parser.add_argument("--num-shards", type=int, help="by default what dlio chooses")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--part", action="store_true", help="a twelfth of the images only")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        root = make_set(arguments.data, name)
        report(root, "part" if arguments.part else "all", arguments)


if __name__ == "__main__":
    main()
