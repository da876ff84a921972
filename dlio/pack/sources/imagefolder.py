"""A folder of class folders, in torchvision's order: class folders sorted, then folders and files below them sorted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Schema
from dlio.errors import SourceError, StorageError, UsageError
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Listing, Refused
from dlio.pack.listing.classes import check_no_splits, pinned
from dlio.pack.listing.image_files import ImageFiles, file_states
from dlio.pack.listing.image_objects import class_objects
from dlio.pack.listing.image_tree import LeftOut, folders_in, is_folder, look, walk_each, without_images
from dlio.pack.listing.keys import Keys, check_folder, key_problem, printable
from dlio.pack.listing.lists import list_path
from dlio.urls import is_url


def image_folder(path: str | Path, split: str = "") -> ImageFiles:
    """Returns the images below `path`, whose sub-folders name the classes; a key is the path below `path`.

    Args:
        path: the folder of the class folders, or a URL such as `s3://bucket/photos`, which needs the extra `remote`.
        split: the folder of `path` that holds the class folders, if `path` holds one for each split, such as `train`
            and `val`; the classes are then those of all splits together: of the folders that share a class with this
            one. `no` says that these folders are classes.
            At a URL, give the URL of the split instead.
    """
    if is_url(path):
        if split not in ("", NO_SPLIT):
            raise UsageError(f"the option split is for folders: give the URL of the split {split!r}")
        listing = partial(class_objects, str(path), checked=split != NO_SPLIT)
        return ImageFiles("imagefolder", list_path(path), str(path), listing)
    path, classes = Path(path).absolute(), tuple[str, ...]()
    if split not in ("", NO_SPLIT):
        splits = folders_in(path)
        if split not in splits:
            raise UsageError(f"{path} has no split {split!r}, only {', '.join(splits) or 'no folders'}")
        path, classes = path / split, _classes_of_all(path, split, splits)
    listing = partial(_listing, path, classes, checked=split != NO_SPLIT)
    return ImageFiles("imagefolder", path, path, listing)


def _classes_of_all(path: Path, split: str, folders: list[str]) -> tuple[str, ...]:
    """Returns the classes of a split, and of the folders next to it that share one: others are not splits."""
    own = set(folders_in(path / split))
    found = own.copy()
    for folder in folders:
        with suppress(StorageError):  # such as lost+found, which only root may list
            others = folders_in(path / folder)
            found.update(() if own.isdisjoint(others) else others)
    return tuple(sorted(found))


open_source = image_folder
IS_GENERAL = True
NO_SPLIT = "no"


def recognises(path: Path) -> bool:
    """Returns whether `path` is a folder of folders."""
    with storage_errors("list", path):
        if not path.is_dir():
            return False
        with os.scandir(path) as entries:
            return any(is_folder(entry) for entry in entries)


def _listing(path: Path, classes: tuple[str, ...], *, checked: bool) -> Listing:
    """Returns all images of class folders; lists every folder once.

    Args:
        path: the folder of the class folders.
        classes: all classes, of which this folder may hold some; if empty, those that it holds.
        checked: whether to refuse folders that are splits, not classes.
    """
    folders, loose, others = look(path)
    if not folders:
        raise SourceError(f"{path} has no class folders: expected one folder of images for each class")
    for name in folders:
        check_folder(path, name)
    if checked:
        one = f"--option split={folders[0]} packs one, with the classes of all"
        check_no_splits(path, folders, f"{one}, --option split=no if these are classes")
    counts, refused, left_out = dict[str, int](), Refused(), LeftOut()
    left_out.add(".", loose, "in no class folder")
    left_out.add(".", others)
    keys = Keys.of(_names(path, folders, counts, refused, left_out))  # distinct, since paths are
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    sizes, versions = file_states(path, keys)
    schema = Schema(IMAGE_CLASSIFICATION.fields, tuple(counts))
    own = Listing(schema, keys, sizes, {"label": labels}, versions=versions, refused=refused)
    return replace(pinned(own, classes) if classes else own, left_out=str(left_out))


def _names(
    path: Path, folders: list[str], counts: dict[str, int], refused: Refused, left_out: LeftOut
) -> Iterator[str]:
    """Yields the path of each image; adds the number of images of each class to `counts`."""
    for name, found in zip(folders, walk_each(path, folders, refused, left_out), strict=True):
        count = num_images = 0
        for below, images in sorted(found):
            keys = _keys(path, [f"{below}/{image}" for image in images], refused)
            count, num_images = count + len(keys), num_images + len(images)
            yield from keys
        if not num_images and name not in dict(refused):
            refused.append((name, without_images(path / name)))
        else:  # also if its images are refused, or unknown: the others keep their labels
            counts[name] = count


def _keys(root: Path, paths: list[str], refused: Refused) -> list[str]:
    """Returns the paths that are keys; adds the others to `refused`."""
    try:
        "".join(paths).encode()
    except UnicodeEncodeError:
        reasons = [(path, key_problem(path)) for path in paths]
        refused += [(printable(path), f"{root}: {reason}") for path, reason in reasons if reason]
        return [path for path, reason in reasons if not reason]
    return paths
