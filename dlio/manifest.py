"""File, Shard and Manifest: what a packed data set consists of, as JSON Lines.

`manifest.jsonl` holds a header line and then one line per shard, in order:

    {"dlio": 1, "format": "tfrecord", "schema": {"image": "bytes", "label": "int64"}, "class_names": [...], ...}
    {"shard": "shard-00000", "samples": 812, "files": [{"name": "shard-00000.tfrecord", "bytes": 268, "digest": ...}]}

While a data set is being packed the lines stand in `manifest.jsonl.partial`, in the order in which shards finish;
the final name appears when all are there. `head`, `wc -l` and `jq` read both.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

from dlio import files
from dlio.errors import DataError, ManifestError, StorageError
from dlio.sample import Schema

NAME = "manifest.jsonl"
PARTIAL_NAME = "manifest.jsonl.partial"
_is_plain = re.compile(r"[\w-][\w.-]*", re.ASCII).fullmatch  # nearly every name; no path needs to be made of it
VERSION = 1
_MAX_COUNT = 2**63 - 1  # samples and bytes are counted in int64


@dataclass(frozen=True, slots=True)
class File:
    """One file of a shard: its path below the data set's folder, size in bytes, and `algorithm:hex` digest."""

    name: str
    num_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class CropReady:
    """How many images of a shard are ready for crops.

    Attributes:
        ready: crops can be cut out of them.
        rewritten: those that were rewritten for that when the shard was packed.
        kept: all others, packed as they were: ready already, or of a kind that is not rewritten.
    """

    ready: int = 0
    rewritten: int = 0
    kept: int = 0

    def __add__(self, other: CropReady) -> CropReady:
        """Returns the counts of both."""
        return CropReady(self.ready + other.ready, self.rewritten + other.rewritten, self.kept + other.kept)


@dataclass(frozen=True, slots=True)
class Shard:
    """A group of samples stored together.

    Attributes:
        name: the stem that its files share.
        num_samples: how many records it holds.
        files: its files; the one that holds the records comes first.
        skipped: the inputs left out under `--on-error skip`, each with the reason.
        nodes: the node ranks that hold the shard once it is staged in parts; empty where every node does.
        crop_ready: how many of its images are ready for crops, rewritten, and kept; None where none is, or was to be.
        inputs: names the state of what it was packed from; '' where that is not known.
    """

    name: str
    num_samples: int
    files: tuple[File, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    nodes: tuple[int, ...] = ()
    crop_ready: CropReady | None = None
    inputs: str = field(default="", compare=False)  # where the samples came from does not change what they are

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
        entries = tuple([File(_inside(item["name"]), _count(item["bytes"]), str(item["digest"])) for item in listed])
        if not entries:
            raise ValueError("a shard without files")
        name, num_samples = _inside(line["shard"]), _count(line["samples"])
        if len(line) == len(("shard", "samples", "files")):
            return cls(name, num_samples, entries)
        skipped = tuple([(str(key), str(reason)) for key, reason in line.get("skipped", ())])
        nodes = tuple(map(_count, line.get("nodes", ())))
        counts, inputs = line.get("crop_ready"), str(line.get("inputs", ""))
        crop_ready = None if counts is None else CropReady(*(_count(counts[name.name]) for name in fields(CropReady)))
        return cls(name, num_samples, entries, skipped, nodes, crop_ready, inputs)


def _inside(name: object) -> str:
    """Returns a file name that stays inside the data set's folder; anything else is refused."""
    if isinstance(name, str) and _is_plain(name):
        return name
    path = PurePosixPath(str(name))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in str(name):
        raise ValueError(f"the file name {name!r} leads outside the data set's folder")
    return str(path)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:  # type: a bool is an int, too
        raise ValueError(f"expected a whole number from 0 to 2**63 - 1, found {value!r}")
    return value


@dataclass(frozen=True)
class Manifest:
    """A packed data set: its format, schema and shards.

    Attributes:
        format: the name of the container format.
        schema: the fields of every sample, with class names and label offset.
        shards: in order; samples are numbered through them from 0.
        origin: how the data set was made: the source, its options, the plan's digest.
        root: the folder that holds the files; not part of the manifest's text.
        node: whose part of a data set staged in parts lies at `root`; None where all of it does.

    Manifests are immutable, picklable, and safe to share between threads.
    """

    format: str
    schema: Schema
    shards: tuple[Shard, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    root: Path = field(default=Path(), compare=False)
    node: int | None = field(default=None, compare=False)

    @property
    def num_samples(self) -> int:
        """The number of samples in all shards."""
        return self.offsets[-1]

    @property
    def num_bytes(self) -> int:
        """The size of all files, in bytes."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def shards_here(self) -> tuple[Shard, ...]:
        """The shards whose files lie at `root`: those of its node, for a data set staged in parts."""
        if self.node is None:
            return self.shards
        return tuple(shard for shard in self.shards if not shard.nodes or self.node in shard.nodes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The schema's class names."""
        return self.schema.class_names

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The inputs that were left out, each with the reason."""
        return tuple(item for shard in self.shards for item in shard.skipped)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The number of the first sample of each shard, then the total."""
        return tuple(accumulate((shard.num_samples for shard in self.shards), initial=0))

    def locate(self, index: int) -> tuple[int, int]:
        """Returns the shard number and the record number within it of sample `index`.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < self.num_samples:
            raise IndexError(f"sample {index} of {self.num_samples} in {self.root}")
        shard = bisect_right(self.offsets, index) - 1
        return shard, index - self.offsets[shard]

    @cached_property
    def content_id(self) -> str:
        """Names the data set wherever it is staged: 32 hex digits over what its samples mean and its files' digests."""
        content = header(self) | {
            "origin": None,  # where the data came from does not change what they are
            "shards": [
                (shard.num_samples, [(file.name, file.num_bytes, file.digest) for file in shard.files])
                for shard in self.shards
            ],
        }
        return files.digest_bytes(json.dumps(content, sort_keys=True).encode()).partition(":")[2]

    @classmethod
    def load(cls, root: str | Path) -> Manifest:
        """Returns the manifest of the data set in the folder `root`.

        Raises:
            ManifestError: there is none, or it is damaged or of another version.
            StorageError: it cannot be read.
        """
        root = Path(root)
        path = root / NAME
        lines = _read_lines(path)
        if lines is None:
            hint = "it is still being packed: run the same pack command again" if (root / PARTIAL_NAME).exists() else ""
            raise ManifestError(f"{path} does not exist; {hint or 'give the folder that dlio pack has written'}")
        return parse_whole(lines, path)

    def save(self, root: str | Path) -> Path:
        """Publishes the manifest in the folder `root` and returns its path.

        Raises:
            StorageError: the folder cannot be written.
        """
        place = {} if self.node is None else {"node": self.node}
        lines = [header(self) | place, *(shard.to_json() for shard in self.shards)]
        path = Path(root) / NAME
        files.publish_bytes(path, "".join(dump_line(line) for line in lines).encode())
        return path


def header(manifest: Manifest) -> dict[str, Any]:
    """Returns the first line of a manifest."""
    return {
        "dlio": VERSION,
        "format": manifest.format,
        "schema": manifest.schema.types(),
        "class_names": list(manifest.schema.class_names),
        "label_offset": manifest.schema.label_offset,
        "origin": dict(manifest.origin),
    }


def dump_line(line: Mapping[str, Any]) -> str:
    """Returns one line of JSON; keys keep their order, text its characters."""
    return json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n"


def parse(lines: Iterable[str], path: Path) -> Manifest:
    """Returns the manifest that `lines` describe; `path` is where they were read, for errors.

    Raises:
        ManifestError: a line is no JSON, lacks a key, names a file outside the folder, or is of another version.
    """
    numbered = enumerate(_values(list(lines)), start=1)
    number = 1
    try:
        number, head = next(numbered)
        if head["dlio"] != VERSION:
            raise ManifestError(f"{path} is of version {head['dlio']}, this dlio reads {VERSION}: pack it anew")
        schema = Schema.of(head["schema"], _texts(head["class_names"]), _signed(head["label_offset"]))
        shards = []
        for number, line in numbered:  # noqa: B007  `number` is used by the error below
            shards.append(Shard.from_json(line))
        _count(sum(shard.num_samples for shard in shards))
        node = None if head.get("node") is None else _count(head["node"])
        return Manifest(str(head["format"]), schema, tuple(shards), dict(head["origin"]), path.parent, node)
    except StopIteration:
        raise ManifestError(f"{path} is empty: expected a header line") from None
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        raise ManifestError(f"{path}, line {number}: {_reason(error)}: restore the file or pack it anew") from error


def parse_whole(lines: Iterable[str], path: Path) -> Manifest:
    """Returns the manifest that `lines` describe, of which none may be missing.

    Raises:
        ManifestError: as `parse` says, or the last shards are missing.
    """
    manifest = parse(lines, path)
    expected = manifest.origin.get("num_shards")
    if expected is not None and expected != len(manifest.shards):
        raise ManifestError(f"{path} names {expected} shards and lists {len(manifest.shards)}: it is cut off")
    return manifest


def _values(lines: Sequence[str]) -> Iterator[Any]:
    """Yields the JSON value of each line: all parsed at once, in half the time; singly where that fails, to name one.

    Raises:
        ValueError: a line is no JSON value, or more than one.
    """
    try:
        values = json.loads(f"[{','.join(lines)}]")
    except ValueError:
        values = []
    yield from values if len(values) == len(lines) else map(json.loads, lines)


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str))
    if isinstance(values, str) or len(texts) != len(tuple(values)):
        raise ValueError(f"expected a list of names, found {values!r}")
    return texts


def _signed(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAX_COUNT:
        raise ValueError(f"expected a whole number of 64 bits, found {value!r}")
    return value


def _reason(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)


def read_partial(root: Path) -> Manifest | None:
    """Returns the manifest of the finished shards of an interrupted run, or None where there was none.

    A last line that a crash cut off is left out.

    Raises:
        ManifestError: the file is not of this form.
    """
    path = root / PARTIAL_NAME
    lines = _read_lines(path)
    if lines is None:
        return None
    whole = [line for line in lines if line.endswith("\n")]
    return parse(whole, path) if whole else None


def _read_lines(path: Path) -> list[str] | None:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is no text: {error}: restore the file or pack it anew") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
