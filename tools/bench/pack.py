"""Measures packing against `tar cf` and the ecosystems' own writers: images/s, interleaved, medians over rounds.

    python tools/bench/pack.py --data /tmp/bench --out /dev/shm/bench            process start taken out
    python tools/bench/pack.py --data /tmp/bench --out /mnt/disk/bench --sync    all with fsync
    python tools/bench/pack.py ... --only tar,recordio --rounds 3

From photographs that scikit-learn and scikit-image ship it makes two sets, always the same: `big`, 6,000 JPEGs of 92 KB
on average in 20 folders, and `small`, 20,000 PNGs of 32 x 32. Each packer runs on a twelfth of a set and on all of it;
the rate is that of the difference, so that process start drops out, which stands apart. On a machine that has other
work too, the CPU time of an image tells more than the rate.
Everything is read from the page cache. The peers run in one process, as their own tools do; dlio and tar as named.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from images import SETS, images_below, make_set

DLIO = ("recordio", "webdataset", "tfrecord", "lmdb", "hdf5")


def run_tar(root: Path, out: Path) -> None:
    """Packs with GNU tar."""
    subprocess.run(["tar", "cf", str(out), "-C", str(root), "."], check=True)


def run_dlio(name: str) -> Callable[[Path, Path], None]:
    """Returns a run of `dlio pack` with two workers, into eight shards so that both have equal work."""

    def run(root: Path, out: Path) -> None:
        words = ["pack", str(root), str(out), "--format", name, "--workers", "2", "--num-shards", "8", "--quiet"]
        subprocess.run([sys.executable, "-m", "dlio", *words], check=True)

    return run


def in_process(write: str) -> Callable[[Path, Path], None]:
    """Returns a run of one of this script's peer writers in a process of its own."""

    def run(root: Path, out: Path) -> None:
        subprocess.run([sys.executable, __file__, "--peer", write, str(root), str(out)], check=True)

    return run


def peer_tfrecord(root: Path, out: Path) -> None:
    """Writes by TensorFlow's TFRecordWriter, a `tf.train.Example` an image."""
    import tensorflow as tf

    def feature(value: object) -> object:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    with tf.io.TFRecordWriter(str(out)) as writer:
        for path, label in images_below(root):
            features = {"image/encoded": feature(path.read_bytes()), "image/class/label": feature(label)}
            features["image/filename"] = feature(path.name.encode())
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def peer_recordio(root: Path, out: Path) -> None:
    """Writes as MXNet's MXIndexedRecordIO does; mxnet itself needs numpy 1.23."""
    with out.open("wb") as records, out.with_suffix(".idx").open("w") as index:
        for number, (path, label) in enumerate(images_below(root)):
            data = struct.pack("<IfQQ", 0, label, number, 0) + path.read_bytes()
            index.write(f"{number}\t{records.tell()}\n")
            records.write(struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4))


def peer_webdataset(root: Path, out: Path) -> None:
    """Writes by webdataset's TarWriter."""
    import webdataset

    with webdataset.TarWriter(str(out)) as writer:
        for path, label in images_below(root):
            writer.write({"__key__": path.stem, path.suffix[1:]: path.read_bytes(), "cls": label})


def peer_lmdb(root: Path, out: Path) -> None:
    """Puts one by one, 1000 a commit."""
    import lmdb

    with lmdb.open(str(out), subdir=False, map_size=1 << 40) as database:
        transaction = database.begin(write=True)
        for number, (path, _) in enumerate(images_below(root)):
            transaction.put(f"{number:08d}".encode(), path.read_bytes())
            if number % 1000 == 999:
                transaction.commit()
                transaction = database.begin(write=True)
        transaction.commit()


def peer_hdf5(root: Path, out: Path) -> None:
    """Assigns to a dataset of variable-length uint8, as users write it."""
    import h5py

    images = images_below(root)
    with h5py.File(out, "w") as file:
        data = file.create_dataset("images", (len(images),), h5py.vlen_dtype("uint8"))
        for number, (path, _) in enumerate(images):
            data[number] = np.frombuffer(path.read_bytes(), "uint8")
        file["labels"] = np.array([label for _, label in images])


PEERS = {
    "tfrecord": (peer_tfrecord, "tensorflow"),
    "recordio": (peer_recordio, "struct"),
    "webdataset": (peer_webdataset, "webdataset"),
    "lmdb": (peer_lmdb, "lmdb"),
    "hdf5": (peer_hdf5, "h5py"),
}


def packers() -> dict[str, Callable[[Path, Path], None]]:
    """Returns what is measured, by name."""
    found: dict[str, Callable[[Path, Path], None]] = {"tar": run_tar}
    found |= {f"dlio {name}": run_dlio(name) for name in DLIO}
    installed = [name for name, (_, package) in PEERS.items() if importlib.util.find_spec(package)]
    return found | {f"peer {name}": in_process(name) for name in installed}


def seconds(run: Callable[[Path, Path], None], root: Path, out: Path, sync: bool) -> np.ndarray:
    """Returns how long a run takes, its output on the disk where `sync` asks for it, and the CPU time of it all."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run(root, out / "packed")
    if sync:
        subprocess.run(["sync", "-f", str(out)], check=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out)
    return np.array([took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime])


def measure(name: str, args: argparse.Namespace) -> None:
    """Prints the table of a set."""
    root, count = make_set(args.data, name), SETS[name][0]
    chosen = {key: run for key, run in packers().items() if not args.only or any(word in key for word in args.only)}
    parts: dict[str, list[np.ndarray]] = {key: [] for key in chosen}
    wholes: dict[str, list[np.ndarray]] = {key: [] for key in chosen}
    for _ in range(args.rounds):
        for key, run in chosen.items():
            parts[key].append(seconds(run, root / "part", args.out, args.sync))
            wholes[key].append(seconds(run, root / "all", args.out, args.sync))
    print(f"\n{name}: {count} images, median of {args.rounds} rounds")
    print(f"{'':18} {'images/s':>9} {'x tar':>6} {'CPU us/image':>13} {'whole run, s':>13} {'start, s':>9}")
    tar = 0.0
    for key in chosen:
        wall, cpu = np.median(np.array(wholes[key]) - np.array(parts[key]), axis=0) / (count * 11 / 12)
        whole = float(np.median(np.array(wholes[key])[:, 0]))
        tar = tar or wall
        rates = f"{1 / wall:9,.0f} {tar / wall:6.2f} {cpu * 1e6:13.1f}"
        print(f"{key:18} {rates} {whole:13.2f} {whole - count * wall:9.2f}")


def main() -> None:
    """Runs the benchmark, or one peer where a run of it asks for that."""
    if sys.argv[1:2] == ["--peer"]:
        PEERS[sys.argv[2]][0](Path(sys.argv[3]), Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder to make the image sets in")
    parser.add_argument("--out", type=Path, required=True, help="the folder to pack into, on tmpfs or on a disk")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=list(SETS))
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts of the packers' names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sync", action="store_true", help="wait for the disk")
    args = parser.parse_args()
    for name in args.sets:
        measure(name, args)


if __name__ == "__main__":
    main()
