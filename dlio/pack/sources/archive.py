"""A tar, a zip or a SquashFS image that holds a folder of class folders. It is read in place, not unpacked.

Classes and order are those of ImageFolder over the unpacked tree, from the first folder that holds more than one
folder. A tar within a tar is a folder of its name without the suffix, as in ImageNet's `ILSVRC2012_img_train.tar`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Fields, Sample, Schema
from dlio.errors import DataError, SourceError
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.io.files import closed_on_error
from dlio.io.random_access import RandomAccessFile
from dlio.pack.inspect.image_header import HEAD_BYTES, check_large
from dlio.pack.listing.archive_members import (
    IMAGES,
    STORED,
    ArchiveMember,
    LocalHeader,
    check_crc,
    members_of,
    read_local_header,
)
from dlio.pack.listing.base import Listing, Numbers, Refused, read_ahead
from dlio.pack.listing.classes import check_no_splits, of_first_folders
from dlio.pack.listing.image_files import file_state
from dlio.pack.listing.image_tree import EXTENSIONS
from dlio.pack.listing.keys import Keys
from dlio.pack.prefetch import Prefetcher

_LOOSE = "give the folder of the class folders with --root, or --source webdataset if these are its shards"
ARCHIVES = (".tar", ".zip", *IMAGES)
COMPRESSED_ARCHIVES = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")  # recognised to be refused by name


def archive(path: str | Path, root: str | Path | None = None) -> Archive:
    """Returns the images in the archive `path`.

    Args:
        path: a tar without compression, a zip, or a SquashFS image of any compression but lzo and lzma.
        root: the folder within the archive that holds the class folders; by default it is found.
    """
    return Archive(Path(path).absolute(), str(root).strip("/") if root is not None else None)


open_source = archive


def recognises(path: Path) -> bool:
    """Returns whether `path` is a file with an archive's suffix."""
    return path.name.lower().endswith((*ARCHIVES, *COMPRESSED_ARCHIVES)) and path.is_file()


@dataclass(frozen=True, slots=True)
class Archive:
    """See `archive`."""

    path: Path
    root: str | None
    name: str = "archive"

    def listing(self) -> Listing:
        """Returns all images, in ImageFolder's order; a key is the path below the folder of class folders."""
        if self.path.name.lower().endswith(COMPRESSED_ARCHIVES):
            problem = "is compressed as a whole, so that single images cannot be read"
            raise SourceError(f"{self.path} {problem}: decompress it to a .tar; do not unpack it")
        refused: Refused = []
        images = [member for member in members_of(self.path, refused) if member.name.lower().endswith(EXTENSIONS)]
        prefix = f"{self.root}/" if self.root is not None else _common_folder(images)
        images = sorted((member for member in images if member.name.startswith(prefix)), key=_order)
        if not images and not refused:
            raise SourceError(f"{self.path} has no images ({' '.join(EXTENSIONS)}) below {prefix or 'its root'!r}")
        names = [member.name.removeprefix(prefix) for member in images]
        if bad := self._refuse(names, refused):
            images = [member for row, member in enumerate(images) if row not in bad]
            names = [name for row, name in enumerate(names) if row not in bad]
        classes, labels = of_first_folders(names)
        check_no_splits(self.path, classes, f"give one with --root {prefix}{classes[0] if classes else ''}")
        extents = [(member.offset, member.packed_bytes, member.num_bytes, member.method) for member in images]
        columns = {"label": labels, "extent": np.array(extents, dtype="int64").reshape(-1, 4)}
        keys = Keys.of(names)
        schema = Schema(IMAGE_CLASSIFICATION.fields, classes)
        sizes = np.array([member.num_bytes for member in images], dtype="int64")
        versions = np.full(len(keys), file_state(str(self.path))[1])
        return Listing(schema, keys, sizes, columns, versions=versions, refused=refused)

    def _refuse(self, names: list[str], refused: Refused) -> frozenset[int]:
        """Refuses names outside of class folders and repeated names; returns their numbers."""
        reasons = dict.fromkeys(Keys.of(names).repeated(), "is in the archive twice: create the archive again")
        loose = [row for row, name in enumerate(names) if "/" not in name]
        reasons |= dict.fromkeys(loose, f"is not in a class folder: {_LOOSE}")
        refused += [(names[row], f"{self.path}: {names[row]!r} {reasons[row]}") for row in sorted(reasons)]
        return frozenset(reasons)

    def sizes(self, listing: Listing) -> Numbers:
        """Returns the size of each image, in bytes."""
        return listing.num_bytes

    def reader(self, listing: Listing) -> Prefetcher[Sample]:
        """Gives a function that reads one image with its class index, from its offset in the archive."""
        file, suffix = RandomAccessFile(self.path), self.path.suffix.lower()
        extents = listing.columns["extent"].tolist()
        with closed_on_error(file):
            content = _image_reader(file) if suffix in IMAGES else partial(_content, file, suffix == ".zip")

        def read(index: int) -> Fields:
            try:
                return {"image": content(*extents[index])}
            except (DataError, zlib.error) as error:
                raise SourceError(f"{self.path}: cannot read {listing.keys[index]!r}: {error}") from error

        return read_ahead(listing, read, file)


def _image_reader(file: RandomAccessFile) -> Callable[[int, int, int, int], bytes]:
    image = Image(file)
    return lambda number, packed, num_bytes, method: image.read(number, None)


def _content(file: RandomAccessFile, is_zip: bool, offset: int, packed: int, num_bytes: int, method: int) -> bytes:
    """Returns the content of a member of a tar or zip."""
    header = read_local_header(file, offset) if is_zip else LocalHeader(offset, None)
    check_large(lambda: _head(file, header.data_offset, packed, method), max(packed, num_bytes))
    data = file.read(header.data_offset, packed)
    content = data if method == STORED else _inflate(data, num_bytes)
    if is_zip:
        check_crc(content, header, file, header.data_offset + packed)
    return content


def _order(member: ArchiveMember) -> tuple[str, str, str]:
    folder, _, name = member.name.rpartition("/")
    return folder.partition("/")[0], folder, name


def _common_folder(images: list[ArchiveMember]) -> str:
    """Returns the deepest folder that holds all images and more than one class folder, with a slash; '' for none."""
    folders = {PurePosixPath(member.name).parent.parts for member in images}
    shared: tuple[str, ...] = min(folders, default=())
    for parts in folders:
        same = [one == two for one, two in zip(shared, parts, strict=False)] + [False]
        shared = shared[: same.index(False)]
    if shared in folders:  # one class only, or images next to folders: the last folder is a class
        shared = shared[:-1]
    return "/".join(shared) + "/" if shared else ""


def _head(file: RandomAccessFile, offset: int, packed: int, method: int) -> bytes:
    """Returns the first bytes of a member."""
    data = file.read(offset, min(packed, HEAD_BYTES))
    return data if method == STORED else zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, HEAD_BYTES)


def _inflate(data: bytes, num_bytes: int) -> bytes:
    """Returns the content of a deflated member, never more than the size in the archive."""
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    content = engine.decompress(data, num_bytes)
    if len(content) != num_bytes or not (engine.eof or engine.decompress(b"", 1) == b""):
        raise SourceError(f"expected {num_bytes} bytes, found {'more' if len(content) == num_bytes else len(content)}")
    return content
