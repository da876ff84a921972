"""The files in a tar or zip archive: their names, and where their bytes lie."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from dlio.errors import SourceError, StorageError
from dlio.io import limits
from dlio.io.random_access import RandomAccessFile
from dlio.pack.listing.keys import odd, printable

STORED = zipfile.ZIP_STORED
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_CRC_BEHIND = 0x8
_DEFLATED = 1032  # bytes at most that a byte stands for, see zlib.net/zlib_tech.html
_TAR_HEADER = 1 << 20  # long names and what pax keeps besides; systems' names have 4 KiB at most
_ADVICE = "make the archive anew; of a zip of millions of files, set DLIO_MAX_SAMPLE to the size of its directory"
Refused = list[tuple[str, str]]  # names, each with the reason


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive.

    Attributes:
        name: its path, with `/` between folders.
        offset: where its bytes begin in a tar, where its local header begins in a zip.
        packed_bytes: how many it takes in the archive.
        num_bytes: how many it has.
        method: zip's number of the compression; a tar has `STORED` only.
    """

    name: str
    offset: int
    packed_bytes: int
    num_bytes: int
    method: int = STORED


class _Directory:
    """An open archive of which only names and places are read, in pieces of `most` bytes.

    A header may claim to be of any size, and the file to be as large, if it is sparse.
    """

    def __init__(self, file: BinaryIO, path: Path, most: int) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file, self._path, self._most = file, path, most

    def read(self, num_bytes: int = -1) -> bytes:
        """Returns the next bytes.

        Raises:
            SourceError: these are more than `most`.
        """
        left = max(0, os.fstat(self._file.fileno()).st_size - self._file.tell())
        wanted = left if num_bytes < 0 else min(num_bytes, left)  # memory is taken before anything is read
        if wanted > self._most:
            raise SourceError(f"{self._path} has a header or directory of more than {self._most:,} bytes: {_ADVICE}")
        return self._file.read(wanted)


def _bounded(file: BinaryIO, path: Path, most: int) -> BinaryIO:
    return cast(BinaryIO, _Directory(file, path, most))  # it has all that tarfile and zipfile ask of one


def members_of(path: Path, refused: Refused) -> Iterator[Member]:
    """Yields the files in an archive, those of tars within a tar too, in the order of its directory.

    To `refused` is added what cannot be read in place: a name that leads outside, a link, what is encrypted.

    Raises:
        SourceError: it is damaged, or compressed as a whole.
        StorageError: it cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for its writer
            raise SourceError(f"{path} is no regular file: give an archive that is one")
        is_zip = path.suffix.lower() == ".zip"
        found = _zip_members(path, refused) if is_zip else _tar_members(path, (0, path.stat().st_size), refused)
        for member in found:
            parts = PurePosixPath(member.name).parts
            if problem := odd(member.name):
                refused.append((printable(member.name), f"{path}: {problem}"))
            elif ".." in parts or member.name.startswith("/") or not parts:
                problem = f"the name {member.name!r} leads outside the archive: make the archive anew"
                refused.append((member.name, f"{path}: {problem}"))
            else:
                yield replace(member, name=str(PurePosixPath(member.name)))
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is no tar without compression, and no zip: {error}") from error
    except OSError as error:
        raise StorageError(error.errno, f"cannot read {path}: {error.strerror or error}") from error


def _zip_members(path: Path, refused: Refused) -> Iterator[Member]:
    with (
        path.open("rb") as file,
        zipfile.ZipFile(_bounded(file, path, limits.sample_bytes())) as archive,
    ):
        end = path.stat().st_size
        for entry in archive.infolist():
            if entry.filename.endswith("/"):  # is_dir would fail on an entry without a name
                continue
            if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _ZIP_METHODS:
                problem = f"{path}: {entry.filename!r} is encrypted or not deflated: make the archive anew"
                refused.append((printable(entry.filename), problem))
            elif entry.compress_size > end or entry.file_size > _DEFLATED * (entry.compress_size + 1):
                told = f"{entry.file_size:,} bytes, deflated to {entry.compress_size:,}, of {end:,} of the archive"
                problem = f"{path}: {entry.filename!r} cannot have {told}: make the archive anew"
                refused.append((printable(entry.filename), problem))
            else:
                sizes = entry.compress_size, entry.file_size
                yield Member(entry.filename, entry.header_offset, *sizes, entry.compress_type)


def zip_data_offset(file: RandomAccessFile, header_offset: int) -> int:
    """Returns where a member's bytes begin, behind its local header (PKWARE's APPNOTE, 4.3.7).

    Raises:
        CorruptRecordError: the file ends before.
        SourceError: there is no local header.
    """
    header = file.read(header_offset, 30)
    if header[:4] != b"PK\3\4":
        raise SourceError(f"no member begins at offset {header_offset}")
    return header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


def check_crc(content: bytes, file: RandomAccessFile, header_offset: int, end: int) -> None:
    """Compares a member's content with the CRC-32 in its local header, or behind its bytes, which end at `end` (4.3.9).

    Raises:
        CorruptRecordError: the file ends before.
        SourceError: they differ.
    """
    header = file.read(header_offset, 30)
    if header[6] & _CRC_BEHIND:
        behind = file.read(end, 8)
        told = behind[4:] if behind.startswith(b"PK\7\10") else behind[:4]
    else:
        told = header[14:18]
    if zlib.crc32(content) != int.from_bytes(told, "little"):
        raise SourceError("its CRC-32 is wrong: restore the archive")


def _tar_members(path: Path, extent: tuple[int, int], refused: Refused) -> Iterator[Member]:
    """Yields the files of the tar that lies at `extent` in `path`; a tar in it is a folder of its name."""
    start, stop = extent
    with path.open("rb") as file:
        file.seek(start)
        with tarfile.open(fileobj=_bounded(file, path, _TAR_HEADER), mode="r:") as archive:
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps about 1 KB of each otherwise
                if entry.isdir():
                    continue
                if entry.offset_data + entry.size > stop:
                    raise SourceError(f"{path}: {entry.name!r} goes beyond the archive's end: it is cut off")
                if not entry.isreg() or entry.issparse():
                    problem = f"{path}: {entry.name!r} is a link or a special file: pack the unpacked tree"
                    refused.append((printable(entry.name), problem))
                    continue
                name = entry.name.removeprefix("./")
                if name.endswith(".tar"):
                    folder = name.removesuffix(".tar")
                    inner = entry.offset_data, entry.offset_data + entry.size
                    for member in _tar_members(path, inner, refused):
                        yield replace(member, name=f"{folder}/{member.name}")
                else:
                    yield Member(name, entry.offset_data, entry.size, entry.size)
            file.seek(archive.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise SourceError(f"{path}: expected the mark of a tar's end at byte {file.tell()}: it is cut off")
