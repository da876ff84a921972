"""What a strategy is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import File, Manifest
from dlio.stage.cache.access import Access
from dlio.stage.transfer.source import Source


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may ask of single strategies.

    Attributes:
        copies: of each shard, over all nodes (partition).
        epochs: how many are planned; 0 where that is not known (auto).
        mode: the permission bits of staged files; None for those of their source.
        stripe_count: over how many storage targets each file goes; 0 for the policy of `striping` (stripe).
        stripe_size: bytes on one target before the next one's turn; 0 for the policy (stripe).
        pool: the pool of storage targets; "" for all (stripe).
        ost_per_rank: place file k on target k mod the number of targets, instead of leaving it to the server (stripe).
    """

    copies: int = 1
    stripe_count: int = 0
    stripe_size: int = 0
    pool: str = ""
    ost_per_rank: bool = False
    epochs: int = 0
    mode: int | None = None


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """How far one of several nodes has come.

    Attributes:
        host: its host name.
        total_bytes: what it lacked at first.
        left_bytes: what it still has to write.
    """

    host: str
    total_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part in bringing a data set to `dest`.

    Attributes:
        source: where the data set is read.
        dest: the folder named by the user.
        topology: this process among those of the job.
        options: what was asked of the strategy.
        report: called with the number of bytes written since the last call, from several threads, one at a time.
        expect: called with the number of bytes that this node lacks, before they are copied.
        watch: called every now and then with how far each node has come, where the nodes can tell each other; in a
            broadcast on all nodes, else on rank 0, from a thread of its own, instead of `expect` and `report`.
    """

    source: Source
    dest: Path
    topology: Topology
    options: Options = NO_OPTIONS
    report: Callable[[int], None] | None = None
    expect: Callable[[int], None] | None = None
    watch: Callable[[Sequence[NodeProgress]], None] | None = None

    @property
    def manifest(self) -> Manifest:
        """The data set at its source."""
        return self.source.manifest

    def access(self, file: File | None) -> Access:
        """Returns who may read a staged file, or the manifest and the folders where none is given.

        Raises:
            StorageError: the source cannot be looked at.
        """
        return self.source.access(file) if self.options.mode is None else Access(self.options.mode)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What this process did.

    Attributes:
        manifest: the staged data set; its `root` is the staged folder.
        source_bytes: read from the source by this process.
        copied_bytes: written to the destination by this process.
    """

    manifest: Manifest
    source_bytes: int = 0
    copied_bytes: int = 0


def all_files(manifest: Manifest) -> list[File]:
    """Returns the files of all shards, in order."""
    return [file for shard in manifest.shards for file in shard.files]
