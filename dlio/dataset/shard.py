"""File and Shard: the content of a line of a manifest. Both are tuples, made in a third of a dataclass's time."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import Any, NamedTuple

MAX_COUNT = 2**63 - 1  # samples and bytes are counted in int64
_is_plain = re.compile(r"[\w-][\w.-]*", re.ASCII).fullmatch  # nearly every name; a Path would take longer


class File(NamedTuple):
    """One file of a shard: its path below the data set's folder, size in bytes, and `algorithm:hex` digest."""

    name: str
    num_bytes: int
    digest: str


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
        num_samples: how many records it holds.
        files: its files; the one that holds the records comes first.
        skipped: the inputs left out under `--on-error skip`, each with the reason.
        nodes: the node ranks that hold the shard once it is staged in parts; empty if every node does.
        crop_ready: counts of images that are ready for crops, rewritten, and kept; None if the packer did not count.
        inputs: identifies the state of its inputs; '' if unknown.
    """

    name: str
    num_samples: int
    files: tuple[File, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    nodes: tuple[int, ...] = ()
    crop_ready: CropReady | None = None
    inputs: str = ""

    @property
    def num_bytes(self) -> int:
        """The size of all its files, in bytes."""
        return sum(file.num_bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Returns the shard's line of the manifest."""
        line: dict[str, Any] = {
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
        return cls(name, num_samples, entries, skipped, nodes, crop_ready, inputs)


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
