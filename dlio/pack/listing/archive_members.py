"""The files in a tar, a zip or a SquashFS image: their names, offsets and sizes."""

from __future__ import annotations

import logging
import os
import stat
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from dlio.dataset.stored_zip import LOCAL_HEADER, LOCAL_MARK
from dlio.errors import CorruptRecordError, SourceError, StorageError
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.formats.layouts.squashfs.records import HiddenFiles
from dlio.formats.payloads.paths import IMAGE_EXTENSIONS
from dlio.io import limits
from dlio.io.random_access import RandomAccessFile
from dlio.pack.listing.base import Refused
from dlio.pack.listing.keys import check_folder, key_problem, printable

log = logging.getLogger(__name__)
STORED = zipfile.ZIP_STORED
IMAGES = (".sqsh", ".squashfs", ".sqfs")
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_CRC_BEHIND = 0x8
_DEFLATED = 1032  # the most bytes that one deflated byte stands for, see zlib.net/zlib_tech.html
_TAR_HEADER = 1 << 20  # long names and pax records; file systems' names have at most 4 KiB
_MOST_PATH = 4096  # characters, with the names of the tars around it
_ADVICE = "create the archive again; for a zip of millions of files, set DLIO_MAX_SAMPLE to the size of its directory"


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A file in an archive.

    Attributes:
        name: its path, with `/` between folders.
        offset: the offset of its content in a tar, of its local header in a zip; its number in an image.
        packed_bytes: its size in the archive.
        num_bytes: its size.
        method: zip's number of the compression; `STORED` in a tar and an image.
    """

    name: str
    offset: int
    packed_bytes: int
    num_bytes: int
    method: int = STORED


class _Directory:
    """An open archive; only its headers are read, each of at most `most` bytes.

    A header may claim any size, and a sparse file may be as large.
    """

    def __init__(self, file: BinaryIO, path: Path, most: int) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file, self._path, self._most = file, path, most

    def read(self, num_bytes: int = -1) -> bytes:
        """Returns the next bytes; raises SourceError if more than `most` are asked for."""
        left = max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())
        wanted = left if num_bytes < 0 else min(num_bytes, left)  # memory is allocated before the read
        if wanted > self._most:
            raise SourceError(f"{self._path} has a header or directory of more than {self._most:,} bytes: {_ADVICE}")
        return self._file.read(wanted)


def bounded(file: BinaryIO, path: Path, most: int) -> BinaryIO:
    """Returns an archive for tarfile or zipfile, whose headers have at most `most` bytes."""
    return cast(BinaryIO, _Directory(file, path, most))  # it has all methods that tarfile and zipfile use


def members_of(path: Path, refused: Refused) -> Iterator[ArchiveMember]:
    """Yields the files in an archive, also those of tars within a tar, in the order of its directory.

    Files that cannot be read in place are added to `refused`: links, encrypted files, names that point outside.

    Raises:
        SourceError: the archive is damaged, or compressed as a whole.
        StorageError: it cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for its writer
            raise SourceError(f"{path} is not a regular file: give an archive that is one")
        for member in _members(path, refused):
            parts = PurePosixPath(member.name).parts
            if problem := key_problem(member.name):
                if member.name.lower().endswith(IMAGE_EXTENSIONS):
                    check_folder(path, member.name.rpartition("/")[0])
                refused.append((printable(member.name), f"{path}: {problem}"))
            elif ".." in parts or member.name.startswith("/") or not parts:
                problem = f"the name {member.name!r} points outside the archive: create the archive again"
                refused.append((member.name, f"{path}: {problem}"))
            else:
                yield replace(member, name=str(PurePosixPath(member.name)))
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError) as error:
        if isinstance(error, SourceError):
            raise
        if isinstance(error, CorruptRecordError):
            raise SourceError(str(error)) from error
        raise SourceError(
            f"{path} is neither a tar without compression nor a zip nor a SquashFS image: {error}"
        ) from error
    except OSError as error:
        raise StorageError(error.errno, f"cannot read {path}: {error.strerror or error}") from error


def _members(path: Path, refused: Refused) -> Iterator[ArchiveMember]:
    if path.suffix.lower() in IMAGES:
        return _image_members(path)
    is_zip = path.suffix.lower() == ".zip"
    return _zip_members(path, refused) if is_zip else _tar_members(path, refused)


def _image_members(path: Path) -> Iterator[ArchiveMember]:
    """Yields the files of a SquashFS image; logs what else it holds."""
    with closing(RandomAccessFile(path)) as file:
        image = Image(file)
        if HiddenFiles.of(image) is not None:
            raise SourceError(f"{path} is a shard of dlio's: give the folder of its data set, or `dlio index` it first")
        if image.left_out:
            log.warning("%s: not packed: %s", path, image.left_out)
        for number, size in enumerate(image.files.size.tolist()):
            yield ArchiveMember(image.files.path(number).decode(errors="surrogateescape"), number, size, size)


def _zip_members(path: Path, refused: Refused) -> Iterator[ArchiveMember]:
    with (
        path.open("rb") as file,
        zipfile.ZipFile(bounded(file, path, limits.sample_bytes())) as archive,
    ):
        end = path.stat().st_size
        for entry in archive.infolist():
            if entry.filename.endswith("/"):  # is_dir would fail on an entry without a name
                continue
            if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _ZIP_METHODS:
                problem = f"{path}: {entry.filename!r} is encrypted or not deflated: create the archive again"
                refused.append((printable(entry.filename), problem))
            elif entry.compress_size > end or entry.file_size > _DEFLATED * (entry.compress_size + 1):
                claim = f"{entry.file_size:,} bytes, deflated to {entry.compress_size:,}, of {end:,} of the archive"
                problem = f"{path}: {entry.filename!r} cannot have {claim}: create the archive again"
                refused.append((printable(entry.filename), problem))
            else:
                sizes = entry.compress_size, entry.file_size
                yield ArchiveMember(entry.filename, entry.header_offset, *sizes, entry.compress_type)


class LocalHeader(NamedTuple):
    """The header before a zip member: the offset of the member's data, and its CRC-32; None if it follows the data."""

    data_offset: int
    crc: int | None


def read_local_header(file: RandomAccessFile, offset: int) -> LocalHeader:
    """Returns the local header at `offset`.

    Raises:
        CorruptRecordError: the file ends before.
        SourceError: there is no local header.
    """
    mark, flags, crc, name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(offset, LOCAL_HEADER.size))
    if mark != LOCAL_MARK:
        raise SourceError(f"no member begins at offset {offset}")
    return LocalHeader(offset + LOCAL_HEADER.size + name_bytes + extra_bytes, None if flags & _CRC_BEHIND else crc)


def check_crc(content: bytes, header: LocalHeader, file: RandomAccessFile, end: int) -> None:
    """Compares a member's content with its CRC-32, which may follow the data that end at `end` (APPNOTE, 4.3.9).

    Raises:
        CorruptRecordError: the file ends before.
        SourceError: they differ.
    """
    crc = header.crc
    if crc is None:
        behind = file.read(end, 8)
        crc = int.from_bytes(behind[4:] if behind.startswith(b"PK\7\10") else behind[:4], "little")
    if zlib.crc32(content) != crc:
        raise SourceError("its CRC-32 is wrong: restore the archive")


def _tar_members(path: Path, refused: Refused) -> Iterator[ArchiveMember]:
    """Yields the files of a tar; a tar in it is a folder of its name, and follows, at any depth."""
    with path.open("rb") as file:
        tars = deque([("", 0, path.stat().st_size)])
        while tars:
            folder, start, stop = tars.popleft()
            file.seek(start)
            with tarfile.open(fileobj=bounded(file, path, _TAR_HEADER), mode="r:") as archive:
                while (entry := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # which takes about 1 KB for each
                    if entry.isdir():
                        continue
                    if entry.offset_data + entry.size > stop:
                        raise SourceError(f"{path}: {entry.name!r} goes beyond the archive's end: it is cut off")
                    name = folder + entry.name.removeprefix("./")
                    problem = "is a link or a special file" if not entry.isreg() or entry.issparse() else ""
                    if len(name) > _MOST_PATH:  # else a few bytes could give every name in it any length
                        problem = f"has a path of {len(name):,} characters"
                    if problem:
                        reason = f"{path}: {entry.name!r} {problem}: pack the unpacked tree"
                        refused.append((printable(entry.name), reason))
                    elif name.endswith(".tar"):
                        tars.append(
                            (f"{name.removesuffix('.tar')}/", entry.offset_data, entry.offset_data + entry.size)
                        )
                    else:
                        yield ArchiveMember(name, entry.offset_data, entry.size, entry.size)
                file.seek(archive.offset)
                if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise SourceError(f"{path}: expected the mark of a tar's end at byte {file.tell()}: it is cut off")
