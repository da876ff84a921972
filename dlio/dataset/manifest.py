"""Manifests: the content of a packed data set, as JSON Lines.

`manifest.jsonl` holds a header line, then one line per shard, in order, and the digest of all these lines:

    {"dlio": 2, "format": "tfrecord", "schema": {"image": "bytes", "label": "int64"}, "class_names": [...], ...}
    {"shard": "shard-00000", "samples": 812, "files": [{"name": "shard-00000.tfrecord", "bytes": 268, "digest": ...}]}
    {"digest": "xxh3-128:0f698a592b8a13e6120e494b3093e72b"}

While a data set is being packed the lines are in `manifest.jsonl.partial`, in the order in which shards finish, each
with its own digest line (`dlio.dataset.seal`). The final name appears when all shards are complete. `head`, `tail`
and `jq` read both.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import msgspec

from dlio.cached import cached_property
from dlio.dataset import json_lines, seal
from dlio.dataset.location import NAME, TREE, TREE_SUFFIX, advice_on, folder_of, has_foreign_manifest
from dlio.dataset.schema import Schema
from dlio.dataset.shard import Count, CropReady, DecodeReady, File, Part, Shard, checked, content_id, whole_number
from dlio.errors import DataError, ManifestError, StorageError
from dlio.io import files
from dlio.io.sizes import counted, format_size
from dlio.urls import without_credentials

__all__ = [
    "NAME",
    "PARTIAL_NAME",
    "VERSION",
    "CropReady",
    "DecodeReady",
    "File",
    "Manifest",
    "Part",
    "Shard",
    "from_bytes",
    "header",
    "in_a_line",
    "read_partial",
    "unfinished",
]

PARTIAL_NAME = "manifest.jsonl.partial"
VERSION = seal.VERSION


@dataclass(frozen=True, repr=False)
class Manifest:
    """A packed data set: its format, schema and shards.

    Attributes:
        format: the name of the container format.
        schema: the fields of every sample, with class names and label offset.
        shards: in order; samples are numbered through them from 0.
        origin: how the data set was made: the source, its options, the plan's digest.
        root: the folder that holds the files; not part of the manifest's text.
        node: the node rank whose part is at `root`, for a data set staged in parts; None if all of it is present.
        url: where the files are instead, with its password; "" for a folder (see `dlio.dataset.remote`).
        digest: what the last line of the file that it was loaded from says; "" without a file, or if dlio 0.1 wrote it.

    Manifests are immutable, picklable, and safe to share between threads.
    """

    format: str
    schema: Schema
    shards: tuple[Shard, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    root: Path = field(default=Path(), compare=False)
    node: int | None = field(default=None, compare=False)
    url: str = field(default="", compare=False)
    digest: str = field(default="", compare=False, init=False)  # which `replace` does not keep

    def __repr__(self) -> str:
        return f"<Manifest of {in_a_line(self)}>"

    @property
    def path(self) -> Path:
        """The folder of the data set; of files that are staged as they are, the file or folder that was staged."""
        if self.format != TREE or not self.shards:
            return self.root
        return self.root / self.shards[0].files[0].name.removesuffix(TREE_SUFFIX)

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
    def decode_ready(self) -> DecodeReady:
        """The numbers of decode-ready records in all shards."""
        return sum((shard.decode_ready for shard in self.shards if shard.decode_ready is not None), DecodeReady())

    @property
    def class_names(self) -> tuple[str, ...]:
        """The schema's class names."""
        return self.schema.class_names

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """The inputs left out, each once with the reason; those refused during listing come first."""
        skipped = (item for shard in self.shards for item in shard.skipped)
        return tuple(dict.fromkeys(chain(_refused(self.origin), skipped)))

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
        """Identifies the data set wherever it is staged: 32 hex digits over its schema and its files' digests.

        That of files that are staged as they are is over the list of them, since their digests are not known before.
        """
        return content_id(header(self), self.shards[:1] if self.format == TREE else self.shards)

    @classmethod
    def load(cls, root: str | Path) -> Manifest:
        """Returns the manifest of the data set in the folder `root`, which may be named by its manifest or a shard.

        Raises:
            ManifestError: it is missing, damaged or of another version.
            StorageError: it cannot be read.
        """
        path = folder_of(Path(root)) / NAME
        try:
            with files.opened_regular(path) as descriptor:
                return _read(partial(os.read, descriptor), path)
        except (ManifestError, StorageError) as error:
            is_foreign = has_foreign_manifest(path.parent)
            if not is_foreign and getattr(error, "errno", None) not in (errno.ENOENT, errno.ENOTDIR):
                raise
        around = path.parent.parent
        if (around / (path.parent.name + TREE_SUFFIX)).is_file() and (around / NAME).is_file():
            return cls.load(around)  # a folder that was staged as it is
        is_partial = (path.parent / PARTIAL_NAME).exists()
        hint = "it is still being packed: run the same pack command again" if is_partial else ""
        problem = "was not written by dlio" if is_foreign else "does not exist"
        raise ManifestError(f"{path} {problem}; {hint or advice_on(path.parent)}")

    def save(self, root: str | Path) -> Path:
        """Publishes the manifest in the folder `root` and returns its path.

        Raises:
            StorageError: the folder cannot be written.
        """
        node = {} if self.node is None else {"node": self.node}
        lines = [header(self) | node, *(shard.to_json() for shard in self.shards)]
        path = Path(root) / NAME
        files.publish_bytes(path, seal.sealed("".join(json_lines.dump(line) for line in lines).encode()))
        return path


def in_a_line(manifest: Manifest) -> str:
    """Returns what a data set holds and where."""
    classes = f", {counted(len(manifest.class_names), 'class', 'classes')}" if manifest.class_names else ""
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.shards), "shard")
    size = f"{samples} ({manifest.schema}{classes}) in {shards}"
    location = without_credentials(str(manifest.root))
    return f"{size} of {manifest.format}, {format_size(manifest.num_bytes)}, at {location}"


def header(manifest: Manifest) -> dict[str, object]:
    """Returns the first line of a manifest."""
    return {
        "dlio": VERSION,
        "format": manifest.format,
        "schema": manifest.schema.types(),
        "class_names": list(manifest.schema.class_names),
        "label_offset": manifest.schema.label_offset,
        "origin": dict(manifest.origin),
    }


@json_lines.uncollected()
def _read(read: Callable[[int], bytes], path: Path) -> Manifest:
    blocks = json_lines.blocks(read, path)
    block, running = next(blocks, b""), seal.Seal()
    begin = block.find(b"\n") + 1 or len(block)
    head = seal.read_header(block[:begin].removesuffix(b"\n"), path)
    is_sealed = head["dlio"] != seal.UNSEALED
    lines = running.verified(chain([block], blocks), begin, path) if is_sealed else chain([block[begin:]], blocks)
    found = _made(head, lines, path)
    expected = found.origin.get("num_shards")
    if expected is not None and expected != len(found.shards):
        raise ManifestError(f"{path} names {expected} shards and lists {len(found.shards)}: it is cut off")
    if is_sealed:
        vars(found)["digest"] = running.digest
    else:
        seal.warn_unsealed(path)
    return found


def _made(head: dict[str, Any], lines: Iterable[bytes], path: Path) -> Manifest:
    """Returns the manifest of a header and the lines of shards, in blocks; lines are checked before the header."""
    shards = tuple(chain.from_iterable(json_lines.parse(lines, Shard, checked, path)))
    try:
        schema = Schema.of(head["schema"], _texts(head["class_names"]), whole_number(head["label_offset"]))
        node = None if head.get("node") is None else msgspec.convert(head["node"], Count)
        _refused(head["origin"])
        msgspec.convert(sum([shard.num_samples for shard in shards]), Count)
        return Manifest(str(head["format"]), schema, shards, dict(head["origin"]), path.parent, node)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        raise json_lines.damaged(path, 1, error) from error


def from_bytes(data: bytes, path: Path) -> Manifest:
    """Returns the manifest in `data`, which the caller reads up to one byte beyond the limit.

    Raises:
        ManifestError: it is damaged, of another version, or longer than the limit.
    """
    return _read(BytesIO(data).read, path)


def _refused(origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(name), str(reason).removeprefix(f"{name!r}: ")) for name, reason in origin.get("refused", ())]


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str))
    if isinstance(values, str) or len(texts) != len(tuple(values)):
        raise ValueError(f"expected a list of names, found {values!r}")
    return texts


def read_partial(root: Path) -> Manifest | None:
    """Returns the manifest of the finished shards of an interrupted run, None if there was no such run.

    Raises:
        ManifestError: as `unfinished`.
    """
    path = root / PARTIAL_NAME
    return unfinished(json_lines.read(path) or b"", path)


def unfinished(data: bytes, path: Path) -> Manifest | None:
    """Returns the manifest of shards whose lines have their own digest lines; None without a header line.

    Leaves out other shards: their lines are damaged, or were cut off by a crash.

    Raises:
        ManifestError: the header is damaged, or of another version.
    """
    first, newline, rest = data[: data.rfind(b"\n") + 1].partition(b"\n")
    if not newline:
        return None
    head = seal.read_header(first, path)
    if head["dlio"] != seal.UNSEALED:
        header_line, *lines = seal.sealed_singly(data, path) or [b""]
        if header_line != first + newline:
            raise ManifestError(f"{path} is damaged: its first line does not match its digest line")
        rest = b"".join(lines)
    return _made(head, json_lines.blocks(BytesIO(rest).read, path), path)
