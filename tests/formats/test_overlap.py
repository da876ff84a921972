"""Shards whose index lets each record span the whole file: refused when they are opened, before anything is read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import CorruptRecordError
from dlio.formats.layouts.lmdb import LEAF, NODE, PAGE, PAGE_BYTES
from dlio.formats.readonly import mds
from dlio.testing.container import Container

COUNT = 3
IMAGE_BYTES = 9000  # takes its own overflow pages in LMDB


def tfrecord(path: Path) -> None:
    path.with_suffix(".idx").write_bytes(b"0 %d\n" % path.stat().st_size * COUNT)


def recordio(path: Path) -> None:
    path.with_suffix(".idx").write_bytes(b"".join(b"%d\t0\n" % record for record in range(COUNT)))


def webdataset(path: Path) -> None:
    line = b"jpg 512 %d k.jpg\n" % (path.stat().st_size - 1024)
    path.with_suffix(".idx").write_bytes(b"v1.2 %d\n" % COUNT + line * COUNT)


def hdf5(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["image_offsets"][:] = [0, COUNT * IMAGE_BYTES] * 2


def lmdb(path: Path) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    leaf = next(at for at in range(0, len(data), PAGE_BYTES) if PAGE.unpack_from(data, at)[2] == LEAF)
    nodes = [leaf + at for at in struct.unpack_from(f"<{COUNT}H", data, leaf + PAGE.size)]
    first_page = 2
    size = len(data) - first_page * PAGE_BYTES - PAGE.size
    for node in nodes:
        key_bytes = NODE.unpack_from(data, node)[3]
        struct.pack_into("<HH", data, node, size & 0xFFFF, size >> 16)
        struct.pack_into("<Q", data, node + NODE.size + key_bytes, first_page)
    (path / "data.mdb").write_bytes(data)


def squashfs(path: Path) -> None:
    data = bytearray(path.read_bytes())
    (inodes,) = struct.unpack_from("<Q", data, 64)
    for number in range(COUNT):  # a metadata block's header, then inodes of 32 bytes and a size word
        struct.pack_into("<I", data, inodes + 2 + 36 * number + 16, 96)
    path.write_bytes(data)


CLAIM_ALL: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (tfrecord, recordio, webdataset, hdf5, lmdb, squashfs)
}


def test_records_that_overlap_are_refused(each_container: Container, tmp_path: Path) -> None:
    samples = [Sample(str(label), {"image": bytes(IMAGE_BYTES), "label": label}) for label in range(COUNT)]
    path = each_container.write(tmp_path / "shard", IMAGE_CLASSIFICATION, samples)
    assert each_container.read(path, IMAGE_CLASSIFICATION)
    CLAIM_ALL[each_container.name](path)
    with pytest.raises(CorruptRecordError, match=r"does not match .* bytes|expected .*(increasing|overlap)") as raised:
        each_container.module.Reader(path, IMAGE_CLASSIFICATION)
    assert raised.value.path.startswith(str(tmp_path / "shard"))


def test_samples_of_mds_that_overlap_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard.mds"
    path.write_bytes(struct.pack("<5I", 3, 20, 100, 20, 100) + bytes(80))
    with pytest.raises(CorruptRecordError, match="offsets do not increase from 20 to its end, 100"):
        mds.Reader(path, IMAGE_CLASSIFICATION)
