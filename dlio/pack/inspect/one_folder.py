"""Whether SquashFS images can be shown as one folder: a file that two have would be shown once, silently.

Shards of one run have different files. Sets that were merged or adopted may share files, or a folder may have the name
of another image's file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np

from dlio.errors import UsageError
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.formats.payloads.paths import PREFIX
from dlio.io.random_access import RandomAccessFile

_Names = dict[bytes, set[bytes]]  # of what lies in a folder, by its path


def check_one_folder(images: Sequence[Path]) -> None:
    """Checks that no file of an image hides a file or folder of another one; takes about 1.5 us a file.

    Raises:
        UsageError: one does; names it and both images.
        CorruptRecordError, MissingPackageError, StorageError: an image cannot be read.
    """
    files, folders = defaultdict[bytes, set[bytes]](set), defaultdict[bytes, set[bytes]](set)
    for image in images:
        own_files, own_folders = _names_of(image)
        for folder in own_files | own_folders:
            ours, below = own_files.get(folder, set()), own_folders.get(folder, set())
            if hidden := ours & files[folder] | ours & folders[folder] | below & files[folder]:
                raise _hidden(folder + min(hidden), image, images)
            files[folder] |= ours
            folders[folder] |= below


def _hidden(path: bytes, image: Path, images: Sequence[Path]) -> UsageError:
    folder, _, name = path.rpartition(b"/")
    folder += b"/" * (folder != b"")
    first = next(each for each in images if any(name in names.get(folder, ()) for names in _names_of(each)))
    problem = (
        f"{path.decode(errors='backslashreplace')} is in {first} and in {image}, and one folder would show one of them"
    )
    return UsageError(f"{problem}: mount the merged data sets separately")


def _names_of(path: Path) -> tuple[_Names, _Names]:
    """Returns the names of the files, without the hidden ones, and of the folders, in each folder of an image."""
    with closing(RandomAccessFile(path)) as file:
        found = Image(file).files
    order = np.argsort(found.folder, kind="stable")
    begins, ends = found.name_at[order], (found.name_at + found.name_bytes)[order]
    names = [found.names[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    bounds = np.searchsorted(found.folder[order], np.arange(len(found.folders) + 1)).tolist()
    paths = [found.folder_path(number) for number in range(len(found.folders))]
    files = {path: set(names[begin:end]) for path, (begin, end) in zip(paths, pairwise(bounds), strict=True)}
    files[b""] = {name for name in files[b""] if not name.startswith(PREFIX)}
    folders: _Names = {}
    for above, begin, end in found.folders[1:]:
        folders.setdefault(paths[above], set()).add(found.names[begin:end])
    return files, folders
