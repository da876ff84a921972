"""File, Part and Shard: the content of a line of a manifest, as structures that msgspec parses and makes fast."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from dlio.dataset import json_lines
from dlio.io import files

_ID_VERSION = 1  # which content ids are over: a data set keeps its id
_AT_ONCE = 1024  # shards turned into text: their values take ten times its size
MAX_COUNT = 2**63 - 1  # samples and bytes are counted in int64
TABLE_SUFFIX = ".samples.npz"  # of the table of samples, the last file
_LETTERS = 1 << 17  # processed together: arrays of a megabyte get new memory each time, which takes four times as long
_TABLE_BYTES = 20  # of a sample in it, at least: the key's end, checksum, size

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class _Record(msgspec.Struct, frozen=True, gc=False):
    """Immutable; without cycles, so that the garbage collector need not know millions of them."""

    def replace(self, **changes: object) -> Self:
        """Returns a copy with other values of some attributes."""
        return msgspec.structs.replace(self, **changes)


class File(_Record, frozen=True, gc=False):
    """One file of a shard: its path below the data set's folder, size in bytes, and `algorithm:hex` digest."""

    name: str
    num_bytes: Count = msgspec.field(name="bytes")
    digest: str


class Part(_Record, frozen=True, gc=False):
    """Some of the records that a shard's files hold: a data set that was selected or split off has no others.

    Attributes:
        num_records: how many records the files hold.
        runs: how many records are left out, taken, left out, taken, and so on; those after the last run are left out.
    """

    num_records: Count = msgspec.field(name="of")
    runs: tuple[Count, ...]

    @classmethod
    def of(cls, num_records: int, records: npt.NDArray[np.int64]) -> Part:
        """Returns the part with these records: ascending numbers from 0, int64 of shape (n,)."""
        is_first = np.diff(records, prepend=-2) != 1
        firsts, ends = records[is_first], records[np.roll(is_first, -1)] + 1
        return cls(num_records, tuple(np.diff(np.stack([firsts, ends], axis=1).ravel(), prepend=0).tolist()))

    @property
    def num_samples(self) -> int:
        """The number of records taken."""
        return sum(self.runs[1::2])

    def records(self) -> npt.NDArray[np.int64]:
        """Returns the numbers of the records taken, ascending, int64; check the number of records first."""
        counts = np.array(self.runs[1::2], np.int64)
        firsts = np.cumsum(np.array(self.runs, np.int64))[::2]
        before = np.cumsum(counts) - counts
        return np.repeat(firsts - before, counts) + np.arange(counts.sum())


@dataclass(frozen=True, slots=True)
class CropReady:
    """How many images of a shard are ready for crops.

    Attributes:
        ready: crops can be cut out of them.
        rewritten: made ready when the shard was packed.
        kept: packed unchanged: ready already, or of a kind that is not rewritten.
    """

    ready: Count = 0
    rewritten: Count = 0
    kept: Count = 0

    def __add__(self, other: CropReady) -> CropReady:
        """Returns the counts of both."""
        return CropReady(self.ready + other.ready, self.rewritten + other.rewritten, self.kept + other.kept)


@dataclass(frozen=True, slots=True)
class DecodeReady:
    """How many images of a shard are decode-ready records, which only dlio reads.

    Attributes:
        records: as many; crops can be cut out of them, so they count as crop-ready, too.
        progressive: those made of progressive JPEGs, which come back as baseline JPEGs of the same coefficients.
    """

    records: Count = 0
    progressive: Count = 0

    def __add__(self, other: DecodeReady) -> DecodeReady:
        """Returns the counts of both."""
        return DecodeReady(self.records + other.records, self.progressive + other.progressive)


class Shard(_Record, frozen=True, gc=False, omit_defaults=True):
    """A group of samples stored together.

    Attributes:
        name: the stem that its files share.
        num_samples: how many samples of it are in the data set.
        files: its files; the one that holds the records comes first.
        skipped: the inputs left out under `--on-error skip`, each with the reason.
        nodes: the node ranks that hold the shard once it is staged in parts; empty if every node does.
        crop_ready: counts of images that are ready for crops, rewritten, and kept; None if the packer did not count.
        inputs: identifies the state of its inputs; '' if unknown.
        part: which of its records are in the data set; None if all of them are.
        decode_ready: counts of decode-ready records; None if there are none and none was asked for.
    """

    name: str = msgspec.field(name="shard")
    num_samples: Count = msgspec.field(name="samples")
    files: Annotated[tuple[File, ...], msgspec.Meta(min_length=1)]
    skipped: tuple[tuple[str, str], ...] = ()
    nodes: tuple[Count, ...] = ()
    crop_ready: CropReady | None = None
    inputs: str = ""
    part: Part | None = None
    decode_ready: DecodeReady | None = None

    @property
    def num_records(self) -> int:
        """How many records its files hold."""
        return self.num_samples if self.part is None else self.part.num_records

    def records(self) -> npt.NDArray[np.int64]:
        """Returns the numbers of its samples' records in the files, ascending, int64; check the shard first."""
        return np.arange(self.num_samples) if self.part is None else self.part.records()

    @property
    def num_bytes(self) -> int:
        """The size of all its files, in bytes."""
        return sum([file.num_bytes for file in self.files])  # half the time of a generator, for a million shards

    def to_json(self) -> object:
        """Returns the shard's line of the manifest."""
        return msgspec.to_builtins(self)


@json_lines.uncollected()
def content_id(header: Mapping[str, object], shards: Sequence[Shard]) -> str:
    """Returns what names a data set wherever it is staged, over its manifest's first line and its files' digests."""
    head = {**header, "dlio": _ID_VERSION, "origin": None, "shards": []}  # the origin does not change the data
    before, _, after = json.dumps(head, sort_keys=True).encode().rpartition(b"[]")
    running = files.new_hash(files.DEFAULT_DIGEST)
    running.update(before + b"[")
    for start in range(0, len(shards), _AT_ONCE):
        text = json_lines.dense([_content(shard) for shard in shards[start : start + _AT_ONCE]])
        running.update((b", " if start else b"") + text[1:-1])
    running.update(b"]" + after)
    return running.hexdigest()


def _content(shard: Shard) -> tuple[object, ...]:
    entries = [*map(astuple, shard.files)]
    part = () if shard.part is None else ((shard.part.num_records, shard.part.runs),)
    return (shard.num_samples, entries, *part)


def checked(shards: Sequence[Shard], text: bytes) -> Sequence[Shard]:
    """Returns shards whose names stay inside the data set's folder, and whose counts fit what they count.

    Args:
        shards: some lines of a manifest.
        text: these lines.

    Raises:
        ValueError: the names or counts of one do not.
    """
    if not _is_plain(text) and not _is_plain(json.dumps(_names(shards)).encode()):
        shards = [_with_checked_names(shard) for shard in shards]
    for shard in shards:
        last, count = shard.files[-1], shard.num_samples
        is_doubtful = count * _TABLE_BYTES > last.num_bytes
        if is_doubtful and count <= last.num_bytes:  # so a shard without a table has room
            is_doubtful = last.name.endswith(TABLE_SUFFIX)
        if is_doubtful or shard.part is not None:
            _check_counts(shard)
    return shards


def _names(shards: Sequence[Shard]) -> list[str]:
    return [shard.name for shard in shards] + [file.name for file in files_of(shards)]


def _is_plain(text: bytes) -> bool:
    """Returns whether all strings in JSON are ASCII paths without empty parts and dots at the begin of a part.

    Nearly all names are, and this shows it without checking each. Where a part begins or ends there is a quote or a
    slash, so a part that is empty or begins with a dot shows as two such bytes in a row.
    """
    if b"\\" in text or not text.isascii():
        return False
    letters = np.frombuffer(text, np.uint8)
    return not any(_has_edges_in_a_row(letters[at : at + _LETTERS + 1]) for at in range(0, len(letters), _LETTERS))


def _has_edges_in_a_row(letters: npt.NDArray[np.uint8]) -> bool:
    edges = (letters == ord('"')) | (letters == ord("/"))
    return bool((edges[:-1] & (edges | (letters == ord(".")))[1:]).any())


def _check_counts(shard: Shard) -> None:
    """Raises ValueError for more records than the files have room for, so that no array outgrows the files."""
    last = shard.files[-1]
    room = last.num_bytes // _TABLE_BYTES if last.name.endswith(TABLE_SUFFIX) else shard.num_bytes
    if shard.num_records > room:
        raise ValueError(f"{shard.num_records:,} records, and the shard's files have room for {room:,}")
    if (part := shard.part) is None:
        return
    if len(part.runs) % 2 or 0 in part.runs[1:] or sum(part.runs) > part.num_records:
        raise ValueError(f"runs of records that are empty, or beyond the {part.num_records:,} of the shard's files")
    if part.num_samples != shard.num_samples:
        taken, num_samples = part.num_samples, shard.num_samples
        raise ValueError(f"the runs take {taken:,} records, and the shard has {num_samples:,} samples")


def _with_checked_names(shard: Shard) -> Shard:
    entries = tuple([file.replace(name=_checked_name(file.name)) for file in shard.files])
    return shard.replace(name=_checked_name(shard.name), files=entries)


def _checked_name(name: str) -> str:
    """Returns a file name that stays inside the data set's folder; raises ValueError for any other."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise ValueError(f"the file name {name!r} points outside the data set's folder")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"no file can have the name {name!r}") from None
    return str(path)


def whole_number(value: object) -> int:
    """Returns a number that may be negative, checked; raises ValueError."""
    if type(value) is not int or abs(value) > MAX_COUNT:
        raise ValueError(f"expected a whole number of 64 bits, found {value!r}")
    return value


def files_of(shards: Iterable[Shard]) -> list[File]:
    """Returns the files of shards, in order."""
    return [file for shard in shards for file in shard.files]
