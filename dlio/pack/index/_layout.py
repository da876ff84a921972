"""ShardLayout: what `index` asks of the module of a format, and how that module is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from dlio import formats
from dlio.dataset.schema import Sample, Schema
from dlio.io import extensions


class ShardLayout(Protocol):
    """The contents of a format's module: how other tools lay out its shards."""

    def files(self, path: Path) -> tuple[Path, ...]:
        """Returns the files of the shard at `path`, its records first; empty if `path` is not a shard.

        Reads only the first bytes, or an index at the end of the file.
        """

    def infer(self, records: Path) -> Schema:
        """Returns the schema of the first records of a shard.

        Raises:
            SchemaError: dlio has no schema for these records.
            CorruptRecordError: the file is damaged.
            StorageError: the file cannot be read.
        """

    def keys(self, records: Path) -> Callable[[Sample], str]:
        """Returns a function from a sample, as the format's reader returns it, to its key; '' without a key."""


@runtime_checkable
class ListsShards(Protocol):
    """A layout whose folders contain a list of their shards."""

    def listed(self, root: Path) -> list[str] | None:
        """Returns the names of all shards' files in `root`, in order; None without a list."""


@runtime_checkable
class InfersTogether(Protocol):
    """A layout whose schema follows from all shards."""

    def infer_all(self, shards: Sequence[Path]) -> Schema:
        """Returns the schema of all shards, given what holds the records of each; raises as `infer`."""


@runtime_checkable
class NamesClasses(Protocol):
    """A layout whose records can name their class."""

    def class_names(self, records: Path, numbers: list[int]) -> list[str]:
        """Returns the class names of the records with these numbers; '' for a record without one."""


@runtime_checkable
class ListsClasses(Protocol):
    """A layout whose shards list the names of all classes, also of those without records."""

    def listed_classes(self, records: Path, schema: Schema) -> tuple[str, ...]:
        """Returns the class names that the shard lists, for the fields of `schema`; empty if it lists none."""


def names() -> list[str]:
    """Returns the names of the formats whose shards can be indexed, sorted."""
    return extensions.names([str(Path(__file__).parent)])


def load(name: str) -> ShardLayout:
    """Returns the layout of the format `name`.

    A format of another package is named by its module's dotted path; that module holds its layout too.

    Raises:
        UsageError: there is no such layout.
    """
    if "." in name:
        formats.import_format(name)
    kind, package = "a format that can be indexed", __name__.rpartition(".")[0]
    return cast(ShardLayout, extensions.load(name, kind, package, names(), ("files", "infer", "keys")))
