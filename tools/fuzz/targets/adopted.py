"""Shards of other tools, made by these tools' own packages, as `dlio index` adopts them."""

from __future__ import annotations

import json
import struct
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.executors import processes, serial
from dlio.formats.payloads import example
from dlio.pack.index import index
from dlio.pack.inspect.verify import ShardCheck, check_shards
from tests.helpers.images import image
from tests.helpers.litdata import write_chunk
from tools.fuzz.inputs import Files, case_of, read_folder, with_case
from tools.fuzz.targets import Target, require
from tools.simulate.replaced import replaced

JPEGS = [image(number, "JPEG", width=8, height=6) for number in range(4)]


def check(root: Path, files: Files) -> None:
    """Indexes the folder; what is adopted can be verified, and every sample be read again."""
    with replaced(processes, open=serial.open):  # in this process, whose coverage counts
        case = case_of(files)
        manifest = index(root, format=case["format"], schema=Schema.of(case["schema"]) if case.get("schema") else None)
    for shard in manifest.shards:
        ((_, damage),) = check_shards(ShardCheck(manifest, (shard,), decode=False))
        require(not damage, f"what is adopted is whole ({damage})")


def _folder(name: str, write: Callable[[Path], None], schema: dict[str, str] | None = None) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return with_case(read_folder(Path(folder)), format=name, schema=schema)


def _tfrecord(root: Path) -> None:
    import tensorflow as tf

    def feature(kind: str, value: list[bytes] | list[int] | list[float]) -> tf.train.Feature:
        return tf.train.Feature(**{kind: getattr(tf.train, _LISTS[kind])(value=value)})

    with tf.io.TFRecordWriter(str(root / "train.tfrecord-00000-of-00001")) as writer:
        for number, data in enumerate(JPEGS):
            features = {
                "image/encoded": feature("bytes_list", [data]),
                "image/class/label": feature("int64_list", [number % 2 + 1]),
                "image/class/synset": feature("bytes_list", [b"n0144%d" % (number % 2)]),
                "image/filename": feature("bytes_list", [b"n01440764_%d.JPEG" % number]),
                "image/object/bbox/xmin": feature("float_list", [0.25, 0.5]),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


_LISTS = {"bytes_list": "BytesList", "int64_list": "Int64List", "float_list": "FloatList"}


def _recordio(root: Path, width: int) -> None:
    """As im2rec writes it, whose package this Python cannot install; labels are vectors if `width` is not 0."""
    data = b""
    with (root / "train.idx").open("w") as lines, (root / "train.lst").open("w") as listed:
        for number, picture in enumerate(JPEGS):
            labels = struct.pack(f"<{width}f", *range(width))
            record = struct.pack("<IfQQ", width, number % 2, number + 10, 0) + labels + picture
            lines.write(f"{number + 10}\t{len(data)}\n")
            listed.write(f"{number + 10}\t{number % 2}\tcat/{number}.jpg\n")
            data += struct.pack("<II", 0xCED7230A, len(record)) + record + bytes(-len(record) % 4)
    (root / "train.rec").write_bytes(data)


def _lmdb(root: Path, count: int) -> None:
    import lmdb

    from dlio.formats.payloads.messages import message

    with lmdb.open(str(root / "train_lmdb"), map_size=1 << 20, lock=False) as opened, opened.begin(write=True) as txn:
        for number in range(count):
            datum = message("Datum")(data=JPEGS[number % 4], label=number % 2, encoded=True)
            txn.put(f"{number:08d}_cat/{number}.jpg".encode(), datum.SerializeToString())


def _hdf5_arrays(root: Path, libver: str) -> None:
    import h5py

    with h5py.File(root / "train.h5", "w", libver=libver) as file:
        file["images"] = np.arange(3 * 4 * 5 * 3, dtype="uint8").reshape(3, 4, 5, 3)
        file.create_dataset("labels", data=np.arange(3, dtype="int32"), chunks=(1,), compression="gzip")
        file.create_dataset("box", data=np.zeros((3, 4), "f4"), chunks=(2, 2), fletcher32=True)


def _hdf5_encoded(root: Path) -> None:
    import h5py

    with h5py.File(root / "train.h5", "w") as file:
        column = file.create_dataset("image", (4,), dtype=h5py.vlen_dtype(np.uint8))
        for number, data in enumerate(JPEGS):
            column[number] = np.frombuffer(data, "uint8")
        file["label"] = np.arange(4)
        file["name"] = [f"é{number}" for number in range(4)]


def _webdataset(root: Path, with_index: bool) -> None:
    import webdataset as wds

    with wds.TarWriter(str(root / "train-0000.tar")) as writer:
        for number, data in enumerate(JPEGS):
            array = np.arange(6, dtype="int16").reshape(2, 3)
            writer.write({"__key__": f"cat/{number}", "jpg": data, "cls": number, "json": {"n": 1}, "npy": array})
    if with_index:
        _wds_index(root / "train-0000.tar")


def _wds_index(path: Path) -> None:
    """As DALI's wds2idx writes it."""
    import tarfile

    lines: dict[str, list[str]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            key, _, extension = member.name.partition(".")
            lines.setdefault(key, []).append(f"{extension} {member.offset_data} {member.size} {member.name}")
    text = "".join(" ".join(words) + "\n" for words in lines.values())
    path.with_suffix(".idx").write_text(f"v1.2 {len(lines)}\n{text}")


_MDS_COLUMNS = {"class": ("int", 8), "image": ("jpeg", None), "note": ("str", None), "box": ("ndarray:int16:2,2", 8)}
_MDS_COLUMNS |= {"any": ("ndarray", None), "digits": ("str_int", None), "part": ("float32", 4)}


_MDS_SCHEMA = {"image": "bytes", "note": "str", "any": "int8[?,?]", "digits": "int64", "part": "float32"}


def _mds(root: Path) -> None:
    """As streaming's MDSWriter lays it out, whose package brings others of a gigabyte."""
    config = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": 1 << 26}
    config |= {"column_names": list(_MDS_COLUMNS), "column_encodings": [kind for kind, _ in _MDS_COLUMNS.values()]}
    config["column_sizes"] = [size for _, size in _MDS_COLUMNS.values()]
    text = json.dumps(config, sort_keys=True).encode()
    bodies = []
    for number, data in enumerate(JPEGS):
        values = [number.to_bytes(8, "little"), data, "é".encode(), bytes(8), b"\x09\x08\x02\x02abcd", b"12", bytes(4)]
        sizes = [len(value) for value, (_, size) in zip(values, _MDS_COLUMNS.values(), strict=True) if size is None]
        bodies.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values))
    offsets = np.cumsum([4 + 4 * (len(bodies) + 1) + len(text), *map(len, bodies)]).astype("<u4")
    shard = root / "shard.00000.mds"
    shard.write_bytes(struct.pack("<I", len(bodies)) + offsets.tobytes() + text + b"".join(bodies))
    raw = {"basename": shard.name, "bytes": shard.stat().st_size, "hashes": {}}
    entry = config | {"raw_data": raw, "samples": len(bodies), "zip_data": None}
    (root / "index.json").write_text(json.dumps({"shards": [entry], "version": 2}))


def _parquet(root: Path, version: str) -> None:
    from tests.helpers import arrow

    rows = arrow.table(0, 4, ("image", "label", "tags") if version == "2.0" else ("image", "label", "caption", "depth"))
    arrow.write_new(root / "train-00000-of-00001.parquet", rows, data_page_version=version)


def _litdata(root: Path) -> None:
    """As litdata's BinaryWriter lays out a dictionary's leaves; its package brings others of gigabytes."""
    write_chunk(root, [[data, number.to_bytes(8, "little"), b"\xc3\xa9"] for number, data in enumerate(JPEGS)])


def _array_record(root: Path, options: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(root / "train.array_record-00000-of-00001"), options)
    for number, data in enumerate(JPEGS):
        sample = Sample(f"{number}.jpg", {"image": data, "label": number % 2})
        writer.write(b"".join(example.encoder(IMAGE_CLASSIFICATION)(sample)))
    writer.close()


def _squashfs(root: Path, options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(JPEGS):
            path = Path(folder) / f"class {number % 2}" / f"{number}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        command = ["mksquashfs", folder, str(root / "train.squashfs"), "-quiet", "-no-progress", *options]
        subprocess.run(command, check=True, capture_output=True)


_SQUASHED = [["-noI", "-noD", "-noF", "-no-fragments"], ["-noI"], ["-comp", "xz"], ["-b", "4096", "-noI", "-noF"]]
_SQUASHED += [["-comp", "zstd", "-noI"], ["-comp", "lz4", "-noI"], ["-comp", "xz", "-noI"]]  # damage reaches the blocks
_COMPRESSIONS = ("uncompressed", "zstd:1", "brotli:1", "snappy")
_WRITERS: dict[str, list[Callable[[Path], None]]] = {
    "tfrecord": [_tfrecord],
    "recordio": [partial(_recordio, width=0), partial(_recordio, width=3)],
    "lmdb": [partial(_lmdb, count=3), partial(_lmdb, count=60)],
    "hdf5": [partial(_hdf5_arrays, libver="earliest"), partial(_hdf5_arrays, libver="latest"), _hdf5_encoded],
    "webdataset": [partial(_webdataset, with_index=False), partial(_webdataset, with_index=True)],
    "squashfs": [partial(_squashfs, options=options) for options in _SQUASHED],
    "mds": [_mds],
    "parquet": [partial(_parquet, version="1.0"), partial(_parquet, version="2.0")],
    "litdata": [_litdata],
    "array_record": [partial(_array_record, options=f"group_size:2,{name}") for name in _COMPRESSIONS],
}


def _seeds(name: str) -> list[Files]:
    schema = _MDS_SCHEMA if name == "mds" else None  # for a column that does not have its own
    return [_folder(name, write, schema) for write in _WRITERS[name]]


TARGETS = [Target(f"index-{name}", partial(_seeds, name), check) for name in _WRITERS]
