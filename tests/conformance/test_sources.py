"""Every source of dlio, found by its name; a new one needs an input here."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest

import dlio
from dlio.dataset.manifest import NAME
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
    """Returns what writes a list of four images, one a line, next to the images."""

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


def parquet(folder: Path) -> Path:
    from tests.helpers import arrow

    folder.mkdir()
    arrow.write_old(folder / "train-00000-of-00002.parquet", arrow.table(0, 5))
    arrow.write_new(folder / "train-00001-of-00002.parquet", arrow.table(5, 9))
    return folder


def saved(folder: Path) -> Path:
    from tests.helpers import arrow

    return arrow.write_saved(folder, arrow.table(0, 5), arrow.table(5, 9))


def coco(folder: Path) -> Path:
    (folder / "annotations").mkdir(parents=True)
    names = images(folder / "val")
    listed = [{"id": 9 - n, "file_name": name, "width": 8, "height": 8} for n, name in enumerate(names)]
    boxes = [{"id": n, "image_id": 9 - n // 2, "category_id": 7, "bbox": [0, 1, n, 2]} for n in range(1, 5)]
    found = {"images": listed, "annotations": boxes, "categories": [{"id": 7, "name": "cat"}]}
    (folder / "annotations" / "instances_val.json").write_text(json.dumps(found))
    return folder / "annotations" / "instances_val.json"


def voc(folder: Path) -> Path:
    for name in ("JPEGImages", "Annotations"):
        (folder / name).mkdir(parents=True)
    for number in range(3):
        (folder / "JPEGImages" / f"{number}.jpg").write_bytes(image(number, "JPEG"))
        box = "<xmin>1</xmin><ymin>1</ymin><xmax>8</xmax><ymax>4</ymax>"
        objects = f"<object><name>cat</name><bndbox>{box}</bndbox></object>" * number
        text = f"<annotation><size><width>8</width><height>8</height></size>{objects}</annotation>"
        (folder / "Annotations" / f"{number}.xml").write_text(text)
    return folder


def masks(folder: Path) -> Path:
    for name, mode in {"images": "RGB", "masks": "L"}.items():
        (folder / name / "a").mkdir(parents=True)
        for number in range(4):
            (folder / name / "a" / f"{number}.png").write_bytes(image(number, mode=mode))
    return folder


def shards(folder: Path) -> Path:
    with dlio.Writer(folder, format="webdataset", shard_size=1) as writer:
        for number in range(3):
            writer.write({"image": image(number), "label": number}, key=f"photo{number}")
    for path in [folder / NAME, *folder.glob("*.samples.npz")]:
        path.unlink()
    return folder


def npz(folder: Path) -> Path:
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), "uint8")
    np.savez(folder / "x.npz", images=pixels, labels=np.arange(5, dtype="int32"), score=np.arange(5.0))
    return folder / "x.npz"


def yolo(folder: Path) -> Path:
    for name in ("images", "labels"):
        (folder / name / "train").mkdir(parents=True)
    for number in range(4):
        (folder / "images" / "train" / f"{number}.jpg").write_bytes(image(number, "JPEG"))
        (folder / "labels" / "train" / f"{number}.txt").write_text("1 0.5 0.5 0.25 0.5\n" * number)
    (folder / "data.yaml").write_text("names: [cat, dog]\ntrain: images/train\n")
    return folder


#: By the name of a source, a function that makes an input that `--source auto` recognises as it.
INPUTS: dict[str, Callable[[Path], Path]] = {
    "archive": zip_file,
    "arrow": saved,
    "caffe-list": of_lines(["{name} {row}"], "list.txt"),
    "chestxray14": chestxray14,
    "cifar10": cifar10,
    "coco": coco,
    "csv": of_lines(["path,label", "{name},{row}"], "labels.csv"),
    "frames": frames,
    "imagefolder": image_tree,
    "images": flat,
    "masks": masks,
    "npz": npz,
    "yolo": yolo,
    "voc": voc,
    "lmdb": database,
    "lst": of_lines(["{row}\t{row}\t{name}"], "train.lst"),
    "packed": packed,
    "parquet": parquet,
    "shards": shards,
}


def test_every_source_is_held_to_the_suite() -> None:
    assert sorted(INPUTS) == names()


class TestEverySource(SourceTests):
    @pytest.fixture(params=INPUTS)
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> Source:
        source = open_source(INPUTS[request.param](tmp_path / "in"))
        assert source.name == request.param
        return source
