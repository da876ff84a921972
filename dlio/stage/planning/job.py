"""The input and the result of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import File, Manifest
from dlio.io.filesystems import FileSystem
from dlio.locking.owner import Owner
from dlio.rights.access import Access
from dlio.stage.sources import StagingSource

if TYPE_CHECKING:
    from dlio.stage.meeting.peer import Peer


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may ask for; a strategy reads the options that it knows.

    Attributes:
        copies: nodes that hold each shard, if each node gets a part.
        stripe_count: storage targets for each file; 0 for the policy of the strategy stripe.
        stripe_size: bytes on one target before the next target's turn; 0 for the policy.
        pool: the pool of storage targets; "" for all targets.
        ost_per_rank: put file k on target k mod the number of targets; else the server chooses.
        epochs: the number of epochs planned; 0 if unknown.
        mode: the permission bits of staged files; None for those of their source.
        allow_shared: accept a destination that other machines see too.
        machine: the machine file that `auto` decides by (dlio/stage/choose/machine_file.py); "" for the rates measured.
    """

    copies: int = 1
    stripe_count: int = 0
    stripe_size: int = 0
    pool: str = ""
    ost_per_rank: bool = False
    epochs: int = 0
    mode: int | None = None
    allow_shared: bool = False
    machine: str = ""

    def over(self, others: Options) -> Options:
        """Returns other options, except for those that were given here."""
        given = {name: value for name, value in asdict(self).items() if value != getattr(NO_OPTIONS, name)}
        return replace(others, **given)


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Listeners:
    """Functions that are called while data are staged.

    Attributes:
        chosen: called with a destination that the user did not name, and its file system.
        expect: called with the number of bytes that this node lacks, before they are copied.
        report: called with the number of bytes written since the last call; from several threads, one at a time.
        watch: called repeatedly with the report of each node. A strategy in which nodes exchange data calls it
            in the process of each node that fills its copy; else it is called on rank 0 only, once staging takes longer
            than a moment, if the nodes see a folder to meet in.
    """

    chosen: Callable[[Path, FileSystem], None] | None = None
    expect: Callable[[int], None] | None = None
    report: Callable[[int], None] | None = None
    watch: Callable[[Sequence[Peer]], None] | None = None


NO_LISTENERS = Listeners()


class Asked(TypedDict, total=False):
    """What each way to stage may be asked for besides the data set and its folder.

    Attributes:
        strategy: its name; by default "auto".
        topology: this process's rank and node in the job; by default read from the launcher's variables.
        options, listeners: none by default.
    """

    strategy: str
    topology: Topology | None
    options: Options
    listeners: Listeners


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part in staging a data set to `dest`.

    Attributes:
        source: where the data set is read.
        dest: the folder named by the user, or chosen for them.
        topology: this process's rank and node in the job.
        options: what the user asked for.
        listeners: functions to call on the way.
        holder: of the lease on the copy that an agent fills, which another process took; None for this process's.
    """

    source: StagingSource
    dest: Path
    topology: Topology
    options: Options = NO_OPTIONS
    listeners: Listeners = NO_LISTENERS
    holder: Owner | None = None

    @property
    def manifest(self) -> Manifest:
        """The data set at its source."""
        return self.source.manifest

    def access(self, file: File | None) -> Access:
        """Returns who may read a staged file, or the manifest and the folders if `file` is None.

        Raises:
            StorageError: the status of the source cannot be read.
        """
        return self.source.access(file) if self.options.mode is None else Access(self.options.mode)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What this process did.

    Attributes:
        manifest: the staged data set; its `root` is the staged folder.
        source_bytes: read from the source by this process.
        copied_bytes: written to the destination by this process.
        has_waited: it waited for another process that completed the copy.
    """

    manifest: Manifest
    source_bytes: int = 0
    copied_bytes: int = 0
    has_waited: bool = False


def whole_copy(job: Job) -> str:
    """Returns the name of the copy of a whole data set."""
    return job.manifest.content_id
