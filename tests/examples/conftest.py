"""The examples' data, as published: images of one colour each, which encodes their number."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.examples.observe import NUM_TEST, NUM_TRAIN, RED_STEP


def colour(number: int) -> tuple[int, int, int]:
    """Returns the colour of image `number`."""
    return RED_STEP * number, 255 - RED_STEP * number, 128


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ILSVRC2012/train` and `val`: JPEGs in the folders of three classes, dark to bright."""
    folder = tmp_path_factory.mktemp("imagenet")
    for part, count in {"train": NUM_TRAIN, "val": NUM_TEST}.items():
        for number in range(count):
            path = folder / "ILSVRC2012" / part / f"n0{number * 3 // count}" / f"{number:03}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (48, 40), colour(number)).save(path, quality=95)
    return folder


@pytest.fixture(scope="module")
def chestxray14(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `CXR8` as the NIH gives it: grey PNGs, the table, the two lists of the split."""
    root = tmp_path_factory.mktemp("chestxray14") / "CXR8"
    (root / "images").mkdir(parents=True)
    rows = ["Image Index,Finding Labels,Follow-up #,Patient ID"]
    names = [f"{number:08}_000.png" for number in range(NUM_TRAIN)]
    findings = ("No Finding", "Mass", "Mass|Edema", "Mass|Edema|Hernia")
    for number, name in enumerate(names):
        Image.new("L", (64, 64), RED_STEP * number).save(root / "images" / name)
        rows.append(f"{name},{findings[number * len(findings) // NUM_TRAIN]},0,{number}")
    (root / "Data_Entry_2017_v2020.csv").write_text("\n".join(rows) + "\n")
    (root / "train_val_list.txt").write_text("\n".join(names[NUM_TEST:]) + "\n")
    (root / "test_list.txt").write_text("\n".join(names[:NUM_TEST]) + "\n")
    return root.parent


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cifar-10-batches-py`: five batches and the test batch, the label told by the colour."""
    root = tmp_path_factory.mktemp("cifar10") / "cifar-10-batches-py"
    root.mkdir()
    (root / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"dark", b"bright"]}))
    parts = np.array_split(np.arange(NUM_TRAIN), 5)
    batches = {f"data_batch_{place}": part for place, part in enumerate(parts, start=1)}
    for name, numbers in (batches | {"test_batch": np.arange(NUM_TEST)}).items():
        data = np.array([np.repeat(colour(number), 32 * 32) for number in numbers], "uint8")
        labels = [int(number >= NUM_TEST // 2) for number in numbers]
        (root / name).write_bytes(pickle.dumps({b"data": data, b"labels": labels}))
    return root.parent
