"""Manifests: the content of a packed data set, as JSON Lines.

`manifest.jsonl` holds a header line and then one line per shard, in order:

    {"dlio": 1, "format": "tfrecord", "schema": {"image": "bytes", "label": "int64"}, "class_names": [...], ...}
    {"shard": "shard-00000", "samples": 812, "files": [{"name": "shard-00000.tfrecord", "bytes": 268, "digest": ...}]}

While a data set is being packed the lines are in `manifest.jsonl.partial`, in the order in which shards finish. The
final name appears when all shards are complete. `head`, `wc -l` and `jq` read both.
"""

from __future__ import annotations

import errno
import io
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from dlio.dataset.location import NAME, folder_of
from dlio.dataset.schema import Schema
from dlio.dataset.shard import CropReady, File, Part, Shard, count, whole_number
from dlio.dataset.words import in_a_line, in_html
from dlio.errors import DataError, ManifestError, StorageError
from dlio.io import files, limits

__all__ = [
    "NAME",
    "PARTIAL_NAME",
    "VERSION",
    "CropReady",
    "File",
    "Manifest",
    "Part",
    "Shard",
    "dump_line",
    "from_bytes",
    "header",
    "parse",
    "parse_whole",
    "read_partial",
]

PARTIAL_NAME = "manifest.jsonl.partial"
VERSION = 1
_LINES_AT_ONCE = 1024  # the values of a million lines would take gigabytes


@dataclass(frozen=True, repr=False)
class Manifest:
    """A packed data set: its format, schema and shards.

    Attributes:
        format: the name of the container format.
        schema: the fields of every sample, with class names and label offset.
        shards: in order; samples are numbered through them from 0.
        origin: how the data set was made: the source, its options, the plan's digest.
        root: the folder that holds the files; not part of the manifest's text.
        node: the node rank whose part is at `root`, for a data set staged in parts; None if all of it is there.
        url: where the files are instead, with its password; "" for a folder (see `dlio.dataset.remote`).

    Manifests are immutable, picklable, and safe to share between threads.
    """

    format: str
    schema: Schema
    shards: tuple[Shard, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    root: Path = field(default=Path(), compare=False)
    node: int | None = field(default=None, compare=False)
    url: str = field(default="", compare=False)

    def __repr__(self) -> str:
        return f"<Manifest of {in_a_line(self)}>"

    _repr_html_ = in_html

    @property
    def num_samples(self) -> int:
        """The number of samples in all shards."""
        return self.offsets[-1]

    @property
    def num_bytes(self) -> int:
        """The size of all files, in bytes."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def sample_bytes(self) -> int:
        """The mean size of a sample in its shard's files, in bytes."""
        return self.num_bytes // max(1, sum(shard.num_records for shard in self.shards))

    @property
    def shards_here(self) -> tuple[Shard, ...]:
        """The shards whose files are at `root`: those of its node, for a data set staged in parts."""
        if self.node is None:
            return self.shards
        return tuple(shard for shard in self.shards if not shard.nodes or self.node in shard.nodes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The schema's class names."""
        return self.schema.class_names

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The inputs left out, each with the reason; those refused during listing come first."""
        return (*_refused(self.origin), *(item for shard in self.shards for item in shard.skipped))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The number of the first sample of each shard, then the total."""
        return tuple(accumulate((shard.num_samples for shard in self.shards), initial=0))

    def locate(self, index: int) -> tuple[int, int]:
        """Returns the shard number and the record number within it of sample `index`.

        Raises:
            IndexError: the index is out of range.
        """
        if not 0 <= index < self.num_samples:
            raise IndexError(f"there is no sample {index}: {self.root} has {self.num_samples}, numbered from 0")
        shard = bisect_right(self.offsets, index) - 1
        return shard, index - self.offsets[shard]

    @cached_property
    def content_id(self) -> str:
        """Identifies the data set wherever it is staged: 32 hex digits over its schema and its files' digests."""
        content = header(self) | {
            "origin": None,  # does not change the data
            "shards": [(shard.num_samples, shard.files, *filter(None, [shard.part])) for shard in self.shards],
        }
        text = json.dumps(content, sort_keys=True, check_circular=False)
        return files.digest_bytes(text.encode()).partition(":")[2]

    @classmethod
    def load(cls, root: str | Path) -> Manifest:
        """Returns the manifest of the data set in the folder `root`, which may be named by its manifest or a shard.

        Raises:
            ManifestError: it is missing, damaged or of another version.
            StorageError: it cannot be read.
        """
        path = folder_of(Path(root)) / NAME
        root = path.parent
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
        node = {} if self.node is None else {"node": self.node}
        lines = [header(self) | node, *(shard.to_json() for shard in self.shards)]
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
    """Returns the manifest that `lines` describe; errors name `path`.

    Raises:
        ManifestError: a line is not JSON, lacks a key, names a file outside the folder, or is of another version.
    """
    numbered = enumerate(_values(list(lines), path), start=1)
    number = 1
    try:
        number, head = next(numbered)
        if head["dlio"] != VERSION:
            raise ManifestError(f"{path} is of version {head['dlio']}, this dlio reads {VERSION}: pack it anew")
        schema = Schema.of(head["schema"], _texts(head["class_names"]), whole_number(head["label_offset"]))
        shards = []
        for number, line in numbered:  # noqa: B007  `number` is used by the error below
            shards.append(Shard.from_json(line))
        count(sum(shard.num_samples for shard in shards))
        node = None if head.get("node") is None else count(head["node"])
        _refused(head["origin"])
        return Manifest(str(head["format"]), schema, tuple(shards), dict(head["origin"]), path.parent, node)
    except StopIteration:
        raise ManifestError(f"{path} is empty: expected a header line") from None
    except ManifestError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        raise _damaged(path, number, error) from error


def parse_whole(lines: Iterable[str], path: Path) -> Manifest:
    """Returns the manifest that `lines` describe, with all of its shards.

    Raises:
        ManifestError: as `parse`, or the last shards are missing.
    """
    manifest = parse(lines, path)
    expected = manifest.origin.get("num_shards")
    if expected is not None and expected != len(manifest.shards):
        raise ManifestError(f"{path} names {expected} shards and lists {len(manifest.shards)}: it is cut off")
    return manifest


def from_bytes(data: bytes, path: Path) -> Manifest:
    """Returns the manifest in `data`, which the caller reads up to one byte beyond the limit.

    Raises:
        ManifestError: as `parse_whole`, or it is not text, or longer than the limit.
    """
    return parse_whole(_lines(data, path), path)


def _values(lines: Sequence[str], path: Path) -> Iterator[Any]:
    """Yields the JSON value of each line. Many are parsed at once, in half the time; if that fails, singly.

    Raises:
        ManifestError: a line is not JSON value, or more than one.
    """
    for start in range(0, len(lines), _LINES_AT_ONCE):
        some = lines[start : start + _LINES_AT_ONCE]
        try:
            values = json.loads(f"[{','.join(some)}]")
        except (ValueError, RecursionError):
            values = []
        yield from values if len(values) == len(some) else _singly(some, start + 1, path)


def _singly(lines: Sequence[str], first: int, path: Path) -> Iterator[Any]:
    for number, line in enumerate(lines, start=first):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _damaged(path, number, error) from error


def _damaged(path: Path, number: int, error: Exception) -> ManifestError:
    reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    return ManifestError(f"{path}, line {number}: {reason}: restore the file or pack it anew")


def _refused(origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name), str(reason)) for name, reason in origin.get("refused", ())]


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str))
    if isinstance(values, str) or len(texts) != len(tuple(values)):
        raise ValueError(f"expected a list of names, found {values!r}")
    return texts


def read_partial(root: Path) -> Manifest | None:
    """Returns the manifest of the finished shards of an interrupted run, None if there was no such run.

    Leaves out a last line that a crash cut off.

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
    """Returns the lines of a file, None if there is none."""
    try:
        return _lines(files.read_regular(path, limits.manifest_bytes()), path)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _lines(data: bytes, path: Path) -> list[str]:
    """Returns the lines of a manifest, which the caller reads up to one byte beyond the limit."""
    if len(data) > limits.manifest_bytes():
        most = f"more than {limits.manifest_bytes():,} bytes"
        raise ManifestError(f"{path} has {most}: if all that is a manifest, set DLIO_MAX_MANIFEST to its size")
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").readlines()  # str.splitlines also splits elsewhere
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is not text: {error}: restore the file or pack it anew") from error
