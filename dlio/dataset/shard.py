"""File, Part and Shard: the content of a line of a manifest. Tuples are made in a third of a dataclass's time."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MAX_COUNT = 2**63 - 1  # samples and bytes are counted in int64
_is_plain = re.compile(r"[\w-][\w.-]*", re.ASCII).fullmatch  # nearly every name; a Path would take longer


class File(NamedTuple):
    """One file of a shard: its path below the data set's folder, size in bytes, and `algorithm:hex` digest."""

    name: str
    num_bytes: int
    digest: str


class Part(NamedTuple):
    """Some of the records that a shard's files hold: a data set that was selected or split off has no others.

    Attributes:
        num_records: how many records the files hold.
        runs: how many records are left out, taken, left out, taken, and so on; those after the last run are left out.
    """

    num_records: int
    runs: tuple[int, ...]

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

    @classmethod
    def from_json(cls, value: Mapping[str, Any], num_samples: int) -> Part:
        """Returns the part of a manifest line.

        Raises:
            ValueError, KeyError, TypeError: it is not of this form, or holds another number of samples.
        """
        part = cls(count(value["of"]), tuple([count(run) for run in value["runs"]]))
        if len(part.runs) % 2 or 0 in part.runs[1:] or sum(part.runs) > part.num_records:
            raise ValueError(f"runs of records that are empty, or beyond the {part.num_records:,} of the shard's files")
        if part.num_samples != num_samples:
            raise ValueError(f"the runs take {part.num_samples:,} records, and the shard has {num_samples:,} samples")
        return part


@dataclass(frozen=True, slots=True)
class CropReady:
    """How many images of a shard are ready for crops.

    Attributes:
        ready: crops can be cut out of them.
        rewritten: made ready when the shard was packed.
        kept: packed unchanged: ready already, or of a kind that is not rewritten.
    """

    ready: int = 0
    rewritten: int = 0
    kept: int = 0

    def __add__(self, other: CropReady) -> CropReady:
        """Returns the counts of both."""
        return CropReady(self.ready + other.ready, self.rewritten + other.rewritten, self.kept + other.kept)


class Shard(NamedTuple):
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
    """

    name: str
    num_samples: int
    files: tuple[File, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    nodes: tuple[int, ...] = ()
    crop_ready: CropReady | None = None
    inputs: str = ""
    part: Part | None = None

    @property
    def num_records(self) -> int:
        """How many records its files hold."""
        return self.num_samples if self.part is None else self.part.num_records

    @property
    def whole(self) -> Shard:
        """The shard with all records of its files."""
        return self if self.part is None else self._replace(num_samples=self.num_records, part=None)

    @property
    def num_bytes(self) -> int:
        """The size of all its files, in bytes."""
        return sum(file.num_bytes for file in self.files)

    def to_json(self) -> dict[str, object]:
        """Returns the shard's line of the manifest."""
        line: dict[str, object] = {
            "shard": self.name,
            "samples": self.num_samples,
            "files": [{"name": file.name, "bytes": file.num_bytes, "digest": file.digest} for file in self.files],
        }
        if self.skipped:
            line["skipped"] = [list(item) for item in self.skipped]
        if self.nodes:
            line["nodes"] = list(self.nodes)
        if self.crop_ready is not None:
            line["crop_ready"] = asdict(self.crop_ready)
        if self.inputs:
            line["inputs"] = self.inputs
        if self.part is not None:
            line["part"] = {"of": self.part.num_records, "runs": list(self.part.runs)}
        return line

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Shard:
        """Returns the shard of a manifest line.

        Raises:
            ValueError, KeyError, TypeError: the line is not of this form, or names a file outside the folder.
        """
        listed = line["files"]
        entries = tuple([File(_inside(item["name"]), count(item["bytes"]), str(item["digest"])) for item in listed])
        if not entries:
            raise ValueError("a shard without files")
        name, num_samples = _inside(line["shard"]), count(line["samples"])
        if len(line) == len(("shard", "samples", "files")):
            return cls(name, num_samples, entries)
        skipped = tuple([(str(key), str(reason)) for key, reason in line.get("skipped", ())])
        nodes = tuple(map(count, line.get("nodes", ())))
        counts, inputs = line.get("crop_ready"), str(line.get("inputs", ""))
        crop_ready = None if counts is None else CropReady(*(count(counts[name.name]) for name in fields(CropReady)))
        part = None if line.get("part") is None else Part.from_json(line["part"], num_samples)
        return cls(name, num_samples, entries, skipped, nodes, crop_ready, inputs, part)


def _inside(name: object) -> str:
    """Returns a file name that stays inside the data set's folder; raises ValueError for any other."""
    if isinstance(name, str) and _is_plain(name):
        return name
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(name):
        raise ValueError(f"the file name {name!r} leads outside the data set's folder")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"no file can have the name {name!r}") from None
    return str(path)


def count(value: object) -> int:
    """Returns a number of samples or bytes, checked.

    Raises:
        ValueError: `value` is not an integer from 0 to 2**63 - 1.
    """
    if type(value) is not int or not 0 <= value <= MAX_COUNT:  # type: a bool is an int, too
        raise ValueError(f"expected a whole number from 0 to 2**63 - 1, found {value!r}")
    return value


def whole_number(value: object) -> int:
    """Returns a number that may be negative, checked; raises ValueError."""
    if type(value) is not int or abs(value) > MAX_COUNT:
        raise ValueError(f"expected a whole number of 64 bits, found {value!r}")
    return value
