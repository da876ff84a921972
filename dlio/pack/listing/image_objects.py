"""A folder of class folders at a URL: its images are objects, listed by class, and each read by one request."""

from __future__ import annotations

import errno
from contextlib import closing
from functools import partial

import numpy as np
import xxhash

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample, Schema
from dlio.errors import SourceError, StorageError
from dlio.io.answers.listings import Entry
from dlio.io.remote_files import RemoteFiles
from dlio.pack import pace
from dlio.pack.inspect.image_header import HEAD_BYTES, LARGE_BYTES, check_large
from dlio.pack.listing.base import Listing, Refused, read_ahead
from dlio.pack.listing.classes import check_no_splits
from dlio.pack.listing.image_tree import EXTENSIONS, without_images
from dlio.pack.listing.keys import Keys, key_problem, printable
from dlio.pack.prefetch import Depth, Prefetcher, idle_clock, side_by_side
from dlio.urls import shown

_ENTRY_BYTES = 1000  # about what fsspec keeps of an object
_CHANGES = ("ETag", "LastModified", "mtime", "updated")  # what file systems report of a change
NOMINAL_BYTES = 100_000  # of an object of unknown size: about a photo of a data set
_INT64 = (1 << 63) - 1
_Object = tuple[str, int, int]  # path below the URL, size in bytes, version


def class_objects(url: str, *, checked: bool) -> Listing:
    """Returns all images below a URL, whose folders name the classes, in the order of `image_folder`.

    Args:
        url: may hold a password.
        checked: whether to refuse folders that are splits, not classes.
    """
    path = shown(url)
    with closing(RemoteFiles(url, is_alone=True)) as files:
        pace.spend(1)
        folders = files.folders()
        _check_classes(path, folders, checked)
        depth = Depth(idle_clock)  # several classes are listed at a time
        found = list(side_by_side(partial(_images, files), folders, depth, lambda of: _ENTRY_BYTES * len(of)))
    refused = Refused()
    classes: dict[str, list[_Object]] = {}
    for name, images in zip(folders, found, strict=True):
        reasons = {image[0]: reason for image in images if (reason := key_problem(image[0]))}
        refused += [(printable(key), f"{path}: {reason}") for key, reason in reasons.items()]
        if kept := [image for image in images if image[0] not in reasons]:
            classes[name] = kept
        else:
            refused.append((printable(name), without_images(f"{path}/{name}")))
    keys = Keys.of(image[0] for images in classes.values() for image in images)
    states = np.array([image[1:] for images in classes.values() for image in images], dtype="int64").reshape(-1, 2)
    labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
    schema = Schema(IMAGE_CLASSIFICATION.fields, tuple(classes))
    sizes, versions = np.ascontiguousarray(states.T)
    return Listing(schema, keys, sizes, {"label": labels}, versions=versions, refused=refused)


def _check_classes(path: str, folders: list[str], checked: bool) -> None:
    """Raises SourceError if there are no class folders, and UsageError for splits if `checked`."""
    if not folders:
        raise SourceError(
            f"{path} has no class folders: expected one folder of images for each class; "
            "for a packed data set, use --source packed or dlio convert"
        )
    if checked:
        check_no_splits(path, folders, "give the URL of one, or --option split=no if these are classes")


def image_object_reader(url: str, listing: Listing) -> Prefetcher[Sample]:
    """Gives a function that reads images; keys are paths below the URL, all else is in the listing."""
    files, keys, sizes = RemoteFiles(url), listing.keys, listing.num_bytes.tolist()
    return read_ahead(listing, lambda index: {"image": _read(files, keys[index], sizes[index])})


def _images(files: RemoteFiles, folder: str) -> list[_Object]:
    """Returns the images of a class, in order: folder by folder."""
    pace.spend(1)
    found = [entry for entry in files.files_below(folder) if entry[0].lower().endswith(EXTENSIONS)]
    images = [(name, _num_bytes(entry), _version(entry)) for name, entry in found]
    return sorted(images, key=lambda image: image[0].rpartition("/")[::2])


def _num_bytes(entry: Entry) -> int:
    size = entry.get("size")
    return NOMINAL_BYTES if size is None else int(size)


def _version(entry: Entry) -> int:
    """Returns a number that changes when an object does, as far as its server reports it."""
    told = [str(entry[name]) for name in _CHANGES if name in entry]
    return xxhash.xxh3_64_intdigest("\0".join(told).encode()) & _INT64 if told else 0


def _read(files: RemoteFiles, key: str, num_bytes: int) -> bytes:
    """Returns an object; asks for the head of a large one first; raises SourceError, StorageError."""
    try:
        check_large(lambda: files.fetch(key, HEAD_BYTES, (0, HEAD_BYTES))[:HEAD_BYTES], num_bytes)
        most = max(num_bytes, LARGE_BYTES)
        data = files.fetch(key, most)
    except StorageError as error:
        if error.errno in (errno.ENOENT, errno.EACCES):
            raise SourceError(f"{error.strerror or error}: check that it exists and that you may read it") from None
        raise
    except SourceError as error:
        raise SourceError(f"cannot pack {files}/{key}: {error}") from None
    if len(data) > most:
        raise SourceError(f"{files}/{key} has more than the {most:,} bytes that were listed: pack it again")
    return data
