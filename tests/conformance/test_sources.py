"""Every source of dlio, found by its name; a new one needs an input here."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest

import dlio
from dlio.pack.listing.base import Source
from dlio.sources import image_folder, names, open_source
from dlio.testing.sources import SourceTests
from tests.helpers.archives import make_zip
from tests.helpers.cifar10 import python2_batch
from tests.helpers.images import image, make_image_folder


def images(folder: Path, count: int = 4) -> list[str]:
    """Returns the names of new images in a folder."""
    return list(make_image_folder(folder, {"all": count}))


def of_lines(lines: list[str], name: str) -> Callable[[Path], Path]:
    """Returns what writes a list of four images, one a line, beside them."""

    def write(folder: Path) -> Path:
        texts = [line.format(row=row, name=key) for line in lines for row, key in enumerate(images(folder))]
        (folder / name).write_text("\n".join(dict.fromkeys(texts)) + "\n")
        return folder / name

    return write


def image_tree(folder: Path) -> Path:
    make_image_folder(folder, {"cat": 3, "dog": 2})
    return folder


def flat(folder: Path) -> Path:
    make_image_folder(folder, {"all": 5})
    return folder / "all"


def zip_file(folder: Path) -> Path:
    folder.mkdir()
    return make_zip(folder / "x.zip", {f"{name}/{n}.png": image(n) for n, name in enumerate(["cat", "cat", "dog"])})


def chestxray14(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    rows = ["Image Index,Finding Labels,Follow-up #,Patient ID"]
    for number, finding in enumerate(["No Finding", "Mass|Atelectasis", "Hernia"]):
        (folder / f"images/{number:08d}_000.png").write_bytes(image(number, mode="L"))
        rows.append(f"{number:08d}_000.png,{finding},0,{number}")
    (folder / "Data_Entry_2017.csv").write_text("\n".join(rows) + "\n")
    return folder


def cifar10(folder: Path) -> Path:
    folder.mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        data = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype="uint8")
        (folder / name).write_bytes(python2_batch(data, [0, 1, 9]))
    labels = {b"label_names": [f"class {number}".encode() for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(labels, protocol=2))
    return folder


def frames(folder: Path) -> Path:
    for sequence in ("00/image_2", "01/image_2", "02/image_3"):
        (folder / sequence).mkdir(parents=True)
        for number in range(10):
            (folder / sequence / f"{number:06d}.png").write_bytes(image(number))
    return folder


def database(folder: Path) -> Path:
    folder.mkdir()
    with lmdb.open(str(folder / "db"), map_size=1 << 24) as environment, environment.begin(write=True) as txn:
        for number, name in enumerate(["cat/0", "cat/1", "dog/0"]):
            txn.put(name.encode(), image(number))
    return folder / "db"


def packed(folder: Path) -> Path:
    dlio.pack(image_folder(image_tree(folder / "photos")), folder / "packed", num_shards=2, engine="serial")
    return folder / "packed"


#: By the name of a source, what makes an input that `--source auto` takes for it.
INPUTS: dict[str, Callable[[Path], Path]] = {
    "archive": zip_file,
    "caffe-list": of_lines(["{name} {row}"], "list.txt"),
    "chestxray14": chestxray14,
    "cifar10": cifar10,
    "csv": of_lines(["path,label", "{name},{row}"], "labels.csv"),
    "frames": frames,
    "imagefolder": image_tree,
    "images": flat,
    "lmdb": database,
    "lst": of_lines(["{row}\t{row}\t{name}"], "train.lst"),
    "packed": packed,
}


def test_every_source_is_held_to_the_suite() -> None:
    assert sorted(INPUTS) == names()


class TestEverySource(SourceTests):
    @pytest.fixture(params=INPUTS)
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> Source:
        source = open_source(INPUTS[request.param](tmp_path / "in"))
        assert source.name == request.param
        return source
