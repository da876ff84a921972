"""ChestX-ray14 of the NIH: X-ray images with 14 findings each, named by `Data_Entry_2017.csv` or `..._v2020.csv`.

The images lie in folders `images`, `images_001` to `images_012`, or `images` within these. A label is float32[14]: 1
for each finding named in the column `Finding Labels`, none for `No Finding`. Projects order the findings differently;
here they are sorted by name, and the manifest keeps their names.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dlio.errors import SourceError
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Listing, Refused
from dlio.pack.listing.image_files import ImageFiles, image_file_listing
from dlio.pack.listing.keys import printable
from dlio.pack.listing.lists import Listed, raw_lines, read_lines

TABLES = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")
SPLITS = ("train_val_list.txt", "test_list.txt")
NO_FINDING = "No Finding"
FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Effusion",
    "Emphysema",
    "Fibrosis",
    "Hernia",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pleural_Thickening",
    "Pneumonia",
    "Pneumothorax",
)


def chestxray14(path: str | Path, root: str | Path | None = None) -> ImageFiles:
    """Returns the X-rays at `path`: the folder of the table for all, or a split list for those it names.

    Args:
        path: the data set's folder, its table, or a list of image names such as `test_list.txt`.
        root: the data set's folder (default: that of the file `path`).
    """
    path = Path(path).absolute()
    folder = Path(root).absolute() if root is not None else path if path.is_dir() else path.parent
    return ImageFiles("chestxray14", path, folder, partial(_listing, path, folder))


open_source = chestxray14


def recognises(path: Path) -> bool:
    """Returns whether `path` is the data set's folder, its table, or a split list next to the table."""
    folder = path if path.is_dir() else path.parent
    is_beside = path.is_dir() or path.name in SPLITS
    return path.name in TABLES or (is_beside and any((folder / name).is_file() for name in TABLES))


def _listing(path: Path, root: Path) -> Listing:
    """Returns the images in the order of the split list, or of the table."""
    findings, twice = _findings(path, root)
    is_split = not path.is_dir() and path.suffix.lower() != ".csv"
    listed = Listed[tuple[int, ...]](path, refused=[] if is_split else twice)
    folders = _folders(root)
    for number, name in enumerate(read_lines(path) if is_split else findings, start=1):
        found = findings.get(name, f"{path} names {name!r}, which the table in {root} does not have")
        if isinstance(found, str):
            listed.refused.append((printable(name), found))
        elif len(places := _distinct(root, name, folders.get(name, ()))) == 1:
            listed.add(number, f"{places[0]}/{name}", found)
        else:
            where = " and ".join(places) or "none of the folders images*"
            problem = f"{name!r} is in {where} of {root}: unpack every archive, each once"
            listed.refused.append((printable(name), problem))
    listed.refuse_names()
    labels = np.zeros((len(listed.names), len(FINDINGS)), dtype="float32")
    for row, found in enumerate(listed.labels):
        labels[row, list(found)] = 1
    return image_file_listing(root, listed, labels, FINDINGS)


def _findings(path: Path, root: Path) -> tuple[dict[str, tuple[int, ...] | str], Refused]:
    """Returns the findings of each image by number, or why it is refused; and the rows that repeat an image."""
    table = next((root / name for name in TABLES if (root / name).is_file()), None)
    table = path if path.suffix.lower() == ".csv" else table
    if table is None:
        raise SourceError(f"{root} has no {' or '.join(TABLES)}: give the data set's folder with --root")
    try:
        rows = csv.DictReader(raw_lines(table, newline=""))
        found: dict[str, tuple[int, ...] | str] = {}
        twice: Refused = []
        for row in rows:
            name, line = row["Image Index"] or "", f"{table}, line {rows.line_num}"
            if name in found:
                twice.append((printable(name), f"{line}: {name!r} is listed twice"))
            else:
                found[name] = _numbers(row["Finding Labels"], line) if name else f"{line} names no image"
    except (KeyError, csv.Error) as error:
        raise SourceError(f"{table} is not a table with the columns Image Index and Finding Labels: {error}") from None
    if not found:
        raise SourceError(f"{table} has no rows: expected a line for each image")
    return found, twice


def _distinct(root: Path, name: str, folders: Sequence[str]) -> Sequence[str]:
    """Returns the folders with an image, without those that hold a link to one in another of them."""
    if len(folders) < 2:
        return folders
    return list({os.path.realpath(root / folder / name): folder for folder in folders}.values())


def _folders(root: Path) -> Mapping[str, Sequence[str]]:
    """Returns the folders of each image below the root, by the image's name."""
    found = defaultdict[str, list[str]](list)
    with storage_errors("list", root):
        folders = sorted(folder for folder in root.glob("images*") if folder.is_dir())
        folders += [folder / "images" for folder in folders if (folder / "images").is_dir()]
        for folder in folders:
            for path in folder.iterdir():
                if path.suffix.lower() == ".png":
                    found[path.name].append(str(folder.relative_to(root)))
    return found


def _numbers(text: str | None, line: str) -> tuple[int, ...] | str:
    """Returns the numbers of the named findings, or what is wrong with `line`."""
    names = [name for name in (text or "").split("|") if name != NO_FINDING]
    for name in names:
        if name not in FINDINGS:
            expected = f"expected {NO_FINDING!r} or some of {', '.join(FINDINGS)}, with | between"
            return f"{line}: {name!r} is not a finding: {expected}"
    return tuple(FINDINGS.index(name) for name in names)
