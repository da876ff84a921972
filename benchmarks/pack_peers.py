"""The ecosystems' own packers, as their users call them: `python benchmarks/pack_peers.py NAME ROOT OUT`.

ROOT holds a folder of images for each class. Each packer reads the files one after the other and hands them to its
library's writer, in one process that imports nothing else; `im2rec` has the processes that MXNet's script has. MXNet's
last package (1.9.1) asks for numpy 1.23 and Python below 3.11, so loops that do what its code does stand for it; they
need OpenCV (`pip install opencv-python-headless`).
"""

from __future__ import annotations

import importlib.util
import os
import struct
import sys
from collections.abc import Callable
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any

QUEUED = 1024  # of im2rec
SHORTER_EDGE, QUALITY = 256, 95


def images_below(root: Path) -> list[tuple[Path, int]]:
    """Returns path and label of each image below a folder of classes, as the peers' own scripts list them."""
    classes = sorted(root.iterdir())
    return [(path, label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())]


def tfrecord(root: Path, out: Path) -> None:
    """Writes by TensorFlow's TFRecordWriter, a `tf.train.Example` an image."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
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


class IndexedRecordIO:
    """What MXIndexedRecordIO does (mxnet `recordio.py`), except for its search for the magic number."""

    def __init__(self, out: Path) -> None:
        self._records, self._index = out.open("wb"), out.with_suffix(".idx").open("w")

    def write(self, number: int, label: int, image: bytes) -> None:
        """Packs an image with a label, and appends it under a number."""
        data = struct.pack("<IfQQ", 0, label, number, 0) + image
        self._index.write(f"{number}\t{self._records.tell()}\n")
        self._records.write(struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4))

    def close(self) -> None:
        """Completes both files."""
        self._records.close()
        self._index.close()


def recordio(root: Path, out: Path) -> None:
    """Writes the files unchanged, as `im2rec --pass-through` without other processes."""
    writer = IndexedRecordIO(out)
    for number, (path, label) in enumerate(images_below(root)):
        writer.write(number, label, path.read_bytes())
    writer.close()


def im2rec_alone(root: Path, out: Path) -> None:
    """Does what `im2rec.py --resize 256 --quality 95` does, in one process, which is its default."""
    writer = IndexedRecordIO(out)
    for number, (path, label) in enumerate(images_below(root)):
        writer.write(number, label, _smaller(path))
    writer.close()


def im2rec(root: Path, out: Path) -> None:
    """Does what `im2rec.py --resize 256 --quality 95 --num-thread 2` does, with its processes and queues."""
    inputs: list[Queue[Any]] = [Queue(QUEUED) for _ in range(2)]
    encoded: Queue[Any] = Queue(QUEUED)
    readers = [Process(target=_encode, args=(queue, encoded)) for queue in inputs]
    images = images_below(root)
    writer = Process(target=_write, args=(encoded, out))
    for process in [*readers, writer]:
        process.start()
    for number, (path, label) in enumerate(images):
        inputs[number % len(inputs)].put((number, path, label))
    for queue in inputs:
        queue.put(None)
    for reader in readers:
        reader.join()
    encoded.put(None)
    writer.join()


def _encode(queue: Queue[Any], encoded: Queue[Any]) -> None:
    while (item := queue.get()) is not None:
        number, path, label = item
        encoded.put((number, label, _smaller(path)))


def _smaller(path: Path) -> bytes:
    import cv2

    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    height, width = image.shape[:2]
    if height > width:
        size = SHORTER_EDGE, height * SHORTER_EDGE // width
    else:
        size = width * SHORTER_EDGE // height, SHORTER_EDGE
    data: bytes = cv2.imencode(".jpg", cv2.resize(image, size), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
    return data


def _write(encoded: Queue[Any], out: Path) -> None:
    """Writes in the order of the list: what comes early waits."""
    writer, waiting, following = IndexedRecordIO(out), {}, 0
    while (item := encoded.get()) is not None:
        number, *record = item
        waiting[number] = record
        while following in waiting:
            writer.write(following, *waiting.pop(following))
            following += 1
    writer.close()


def webdataset(root: Path, out: Path) -> None:
    """Writes by webdataset's ShardWriter."""
    from webdataset import ShardWriter

    out.mkdir()
    with ShardWriter(f"{out}/shard-%06d.tar", maxcount=10**9, maxsize=256 << 20, verbose=0) as writer:
        for path, label in images_below(root):
            writer.write({"__key__": path.stem, path.suffix[1:]: path.read_bytes(), "cls": label})


def lmdb(root: Path, out: Path) -> None:
    """Puts one by one, 1000 a commit."""
    from lmdb import open as open_lmdb

    with open_lmdb(str(out), subdir=False, map_size=1 << 40) as database:
        transaction = database.begin(write=True)
        for number, (path, _) in enumerate(images_below(root)):
            transaction.put(f"{number:08d}".encode(), path.read_bytes())
            if number % 1000 == 999:
                transaction.commit()
                transaction = database.begin(write=True)
        transaction.commit()


def hdf5(root: Path, out: Path) -> None:
    """Assigns to a dataset of variable-length uint8, as users write it."""
    import h5py
    import numpy as np

    images = images_below(root)
    with h5py.File(out, "w") as file:
        data = file.create_dataset("images", (len(images),), h5py.vlen_dtype("uint8"))
        for number, (path, _) in enumerate(images):
            data[number] = np.frombuffer(path.read_bytes(), "uint8")
        file["labels"] = np.array([label for _, label in images])


#: The packers by name, and the package that each needs.
PEERS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "tfrecord": (tfrecord, "tensorflow"),
    "recordio": (recordio, "struct"),
    "webdataset": (webdataset, "webdataset"),
    "lmdb": (lmdb, "lmdb"),
    "hdf5": (hdf5, "h5py"),
    "im2rec": (im2rec, "cv2"),
    "im2rec_alone": (im2rec_alone, "cv2"),
}


def installed() -> set[str]:
    """Returns the names of the packers whose package is installed."""
    return {name for name, (_, package) in PEERS.items() if importlib.util.find_spec(package)}


if __name__ == "__main__":
    PEERS[sys.argv[1]][0](Path(sys.argv[2]), Path(sys.argv[3]))
