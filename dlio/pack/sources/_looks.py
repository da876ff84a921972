"""What each kind of input that dlio brings looks like: told by names and a first line, without loading its module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dlio.dataset import manifest
from dlio.io.files import storage_errors

ARCHIVES = (".tar", ".zip")
COMPRESSED_ARCHIVES = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")  # to be refused for what they are
CAFFE_LINE = re.compile(r"(.+) ([+-]?[0-9]{1,10})", re.ASCII)
CHEST_TABLES = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")
CHEST_SPLITS = ("train_val_list.txt", "test_list.txt")
CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR_TEST = ("test_batch",)


def _archive(path: Path) -> bool:
    return path.name.lower().endswith((*ARCHIVES, *COMPRESSED_ARCHIVES)) and path.is_file()


def _caffe_list(path: Path) -> bool:
    """Tells whether `path` is a .txt file whose first line ends with a space and a whole number."""
    if path.suffix != ".txt" or not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(1 << 16).decode(errors="replace")
    return CAFFE_LINE.fullmatch(first.rstrip("\r\n")) is not None


def _chestxray14(path: Path) -> bool:
    """Tells whether `path` is a folder with the table, the table, or a split list beside it."""
    folder = path if path.is_dir() else path.parent
    is_one = path.is_dir() or path.name in CHEST_SPLITS
    return path.name in CHEST_TABLES or (is_one and any((folder / name).is_file() for name in CHEST_TABLES))


def _cifar10(path: Path) -> bool:
    return (path / CIFAR_TEST[0]).is_file() or (path / CIFAR_TRAIN[0]).is_file()


def _frames(path: Path) -> bool:
    """Tells whether `path` holds sequences as KITTI has them, each with its frames in a folder `image_*`."""
    return path.is_dir() and next(path.glob("*/image_[0-9]*"), None) is not None


def _folder_of_folders(path: Path) -> bool:
    with storage_errors("list", path):
        return path.is_dir() and any(entry.is_dir() for entry in path.iterdir())


#: The kinds of input, as on the command line, and whether a path looks like one; where several fit, the first counts.
LOOKS: Mapping[str, Callable[[Path], bool]] = {
    "archive": _archive,
    "chestxray14": _chestxray14,
    "cifar10": _cifar10,
    "frames": _frames,
    "lst": lambda path: path.suffix == ".lst" and path.is_file(),
    "packed": lambda path: (path / manifest.NAME).is_file(),
    "caffe-list": _caffe_list,
    "csv": lambda path: path.suffix.lower() == ".csv" and path.is_file(),
    "imagefolder": _folder_of_folders,
}
