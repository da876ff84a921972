"""The only door to staging: in which folder, and by which strategy.

`dlio stage`, its dry run, `--background` and a loader's `cache=` all choose here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Unpack

from dlio.cluster import mpi
from dlio.cluster.topology import Topology
from dlio.dataset import seal
from dlio.dataset.location import TREE
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.shard import files_of
from dlio.errors import StorageError, UsageError
from dlio.io.filesystems import FileSystem, existing, filesystem_of, local_folders, memory_left
from dlio.io.sizes import counted, format_size
from dlio.locking.owner import node_id
from dlio.stage.choose.auto import already_there, choose, choose_shared
from dlio.stage.choose.machine_file import known
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.locations import folder_for_us, safe_copies
from dlio.stage.copies.node_cache import room
from dlio.stage.planning.cost import UNKNOWN_ROOM, Cost, Machine, Volume
from dlio.stage.planning.job import NO_LISTENERS, NO_OPTIONS, Asked, Job
from dlio.stage.sources import StagingSource
from dlio.stage.strategies import AUTO, Needs, cost_of, load, names_for, needs_of

_LIVE = "replicate"  # what `auto` is for agents: they pass files to each other, and keep as much as there is room for
_MEMORY_SHARE = 0.5  # what a file system in memory may take of the free memory: the training needs the other half
_WORTH_SHARDS = 1000  # the id of a smaller data set is computed sooner than a copy is found


@dataclass(frozen=True, slots=True)
class Choice:
    """Where and how to stage.

    Attributes:
        job: with its destination, and the number of copies that `auto` has chosen.
        name: of the strategy.
        cost: the decision of `auto`; None if the strategy was named.
        room: what `room_at` has found for `auto`; None if it was not asked.
    """

    job: Job
    name: str
    cost: Cost | None = None
    room: FileSystem | None = None


def chosen(
    source: StagingSource,
    dest: str | PathLike[str] | None,
    *,
    without: Sequence[Path] = (),
    in_background: bool = False,
    **asked: Unpack[Asked],
) -> Choice:
    """Returns where and how to stage; every process of a job that stages by `auto` calls it.

    Args:
        source: what is staged.
        dest: as `dlio.stage`; the listener `chosen` is called with a folder that was not named.
        without: folders that proved full.
        in_background: agents are to stage it.
        asked: see `Asked`.

    Raises:
        DlioError: as `dlio.stage`, as far as it is known before anything is copied.
    """
    strategy, options = asked.get("strategy", AUTO), asked.get("options", NO_OPTIONS)
    is_tree = source.manifest.format == TREE  # which keeps its modes
    if options.mode is not None and options.mode & ~0o044 != 0o600 and not is_tree:
        raise UsageError(f"mode {options.mode:o}: staged files can be 600, 640 or 644")
    if not (is_tree or all(shard.files[0].digest for shard in source.manifest.shards)):
        advice = "dlio index with --checksums and --overwrite reads each file once"
        raise UsageError(f"{source.manifest.root} was indexed without checksums: no copy could be verified: {advice}")
    strategy = _LIVE if in_background and strategy == AUTO else strategy
    needs = needs_of(strategy)
    if in_background and needs and needs.shared:
        raise UsageError(f"{strategy} cannot run in the background: choose one of {names_for(shared=False)}")
    topology = asked.get("topology") or Topology.from_env()
    job = Job(source, Path(dest or "").absolute(), topology, options, asked.get("listeners", NO_LISTENERS))
    if dest is None:
        job = with_dest(job, strategy, without)
    else:
        learn_id(job.manifest, job.dest)
    _check(job, strategy, needs)
    if strategy != AUTO:
        load(strategy).copy_name(job)  # raises at once what the job lacks
        return Choice(job, strategy)
    cost, free = decide(job)
    job = replace(job, options=replace(options, copies=cost.copies))
    _check(job, cost.strategy, needs_of(cost.strategy))
    return Choice(job, cost.strategy, cost, free)


def _check(job: Job, strategy: str, needs: Needs | None) -> None:
    """Refuses a destination that is a file, lies in the data set itself, or that needlessly is seen by other machines.

    Raises UsageError.
    """
    if job.manifest.format == TREE:
        check_tree(job.manifest, strategy, needs)
        if job.options.mode is not None:
            raise UsageError(f"{job.manifest.path} keeps its modes: leave out the mode {job.options.mode:o}")
    if job.dest.resolve().is_relative_to(job.manifest.path.resolve()):
        what = "" if job.manifest.format == TREE else "the data set "
        raise UsageError(f"{job.dest} is inside {what}{job.manifest.path}: stage to a folder outside it")
    for path in (job.dest, *job.dest.parents):
        if os.path.lexists(path) and not os.path.isdir(path):  # noqa: PTH112  nor does it raise for a closed folder
            what = "a broken link, or one to a file" if os.path.islink(path) else "a file"  # noqa: PTH114
            raise UsageError(f"{path} is {what}: name a folder to stage to")
    if is_shared(job.dest) and not job.options.allow_shared and not (needs and needs.shared):
        raise UsageError(
            f"{job.dest} lies on {filesystem_of(job.dest)}, which other machines see too: "
            f"give a node-local folder, choose the strategy {names_for(shared=True)}, or allow a shared one"
        )


def check_tree(manifest: Manifest, strategy: str, needs: Needs | None) -> None:
    """Refuses a strategy that does not go with a file or folder that is staged as it is; raises UsageError."""
    if needs and needs.only_data_sets:
        advice = (
            "only data sets can be striped or partitioned: choose replicate or broadcast, and a folder on each node"
        )
        raise UsageError(f"{manifest.path} cannot be staged with {strategy}: {advice}")


def decide(job: Job) -> tuple[Cost, FileSystem | None]:
    """Returns the strategy that `auto` stands for, the same on all nodes that can connect; and the room, if it looked.

    Raises:
        UsageError: the machine file describes no machine.
        StorageError: it does not fit, or only in parts on which the nodes cannot agree.
    """
    whole, nodes = folder_of(job).has_manifest(), job.topology.num_nodes or 1
    if whole and not mpi.can_agree(job.topology):
        return already_there(nodes), None
    volume, free = Volume.of(job.manifest), room_at(job)
    machine = machine_of(job, free)
    if is_shared(job.dest):
        return replace(choose_shared(volume, machine), why=f"all nodes see {job.dest}, and copy to it together"), free
    everyone = mpi.processes(job.topology)
    machine = replace(machine, can_exchange=everyone is not None)
    if everyone:
        machine, whole = _agreed(machine, whole, everyone)
    if whole:
        return already_there(nodes), free
    decision = choose(volume, machine, job.options.epochs)
    if not machine.can_exchange and load(decision.strategy).NEEDS.parts:
        raise StorageError(
            f"{decision.why}; the nodes cannot agree on parts here: if all have as much room as this one, "
            f"take the strategy {decision.strategy} with {counted(decision.copies, 'copy', 'copies')}"
        )
    return decision, free


def machine_of(job: Job, free: FileSystem | None) -> Machine:
    """Returns the machine as this node sees it, with the rates of the job's machine file, or else those measured."""
    free_bytes = _usable(free) if free else UNKNOWN_ROOM
    seen = Machine(job.topology.num_nodes or 1, free_bytes, mpi.can_agree(job.topology))
    found = known(seen, job.options.machine, job.manifest, job.dest)
    return replace(found, free_bytes=seen.free_bytes, can_exchange=seen.can_exchange)


def is_shared(dest: Path) -> bool:
    """Returns whether other machines see a folder; a node's disk that is not mounted here is no part of a shared root.

    Raises:
        StorageError: the path's status cannot be read.
    """
    system = filesystem_of(dest)
    return system.shared and not (system.mount == "/" and is_elsewhere(dest))


def is_elsewhere(dest: Path) -> bool:
    """Returns whether a folder is not on this machine, and cannot be made: a node's disk, seen from a login node.

    Raises:
        StorageError: the path's status cannot be read.
    """
    around = existing(dest)
    return around != dest.resolve() and not os.access(around, os.W_OK | os.X_OK, effective_ids=True)


def room_at(job: Job, copy: str = "") -> FileSystem | None:
    """Returns `node_cache.room` of the folder of a copy; None if the destination is not on this machine."""
    return None if is_elsewhere(job.dest) else room(folder_of(job, copy))


def _usable(free: FileSystem) -> int:
    return min(free.free_bytes, int(memory_left() * _MEMORY_SHARE)) if free.in_memory else free.free_bytes


def folder_of(job: Job, copy: str = "") -> StagedFolder:
    """Returns the folder of a copy, by default of that of the whole data set."""
    return folder_for_us(job.dest, copy or job.manifest.content_id, files_of(job.manifest.shards))


def _agreed(machine: Machine, whole: bool, everyone: mpi.Processes) -> tuple[Machine, bool]:
    """Returns rank 0's machine with the room of the fullest node, and whether every node has the whole data set."""
    found = everyone.gather("auto", (node_id(), machine.free_bytes, whole, asdict(machine)))
    if None in found:
        raise StorageError(f"process {found.index(None)} of the job has ended before all could agree: see its output")
    nodes, frees, wholes, machines = zip(*found, strict=True)
    return replace(Machine(**machines[0]), num_nodes=len(set(nodes)), free_bytes=min(frees)), all(wholes)


def with_dest(job: Job, strategy: str, without: Sequence[Path] = ()) -> Job:
    """Returns the job with the first of this node's local folders that has the data set, or else has room.

    The order is that of `local_folders`. Unused copies count as room. If the whole fits nowhere, `auto` gets the
    roomiest folder, since parts may fit there. The listener `chosen` is called with the folder.

    Args:
        job: its destination is ignored.
        strategy: the name of a strategy.
        without: folders that proved full.

    Raises:
        UsageError: the strategy needs a folder that all nodes see; no such strategy exists.
        StorageError: this node has no local folder, or none with room; the message lists them with their room.
    """
    needs = needs_of(strategy)
    if needs and needs.shared:
        raise UsageError(f"the strategy {strategy} needs DEST: name a folder on the shared file system")
    folders = [path for path in (folder.absolute() for _, folder in local_folders()) if path not in without]
    for folder in folders:
        learn_id(job.manifest, folder)
    having = (folder for folder in folders if any(_complete_copies(job.manifest.content_id, folder)))
    dest = next(having, None) or _roomy(job, strategy, folders)
    if job.listeners.chosen:
        job.listeners.chosen(dest, filesystem_of(dest))
    return replace(job, dest=dest)


def learn_id(manifest: Manifest, dest: Path) -> None:
    """Takes the content id from a whole copy in `dest` whose manifest ends with the same digest, as it is not computed.

    Only copies that no other user but root can change count.
    """
    if len(manifest.shards) < _WORTH_SHARDS or not manifest.digest or "content_id" in vars(manifest):
        return
    with suppress(OSError):  # then it is computed
        for copy in _complete_copies("", dest):
            is_whole = "." not in copy.copy and copy.marked_as() == copy.copy
            if is_whole and seal.ends_with(copy.path / NAME, manifest.digest):
                vars(manifest)["content_id"] = copy.copy
                return


def _complete_copies(content_id: str, dest: Path) -> Iterator[StagedFolder]:
    return (copy for copy in safe_copies(content_id, [dest]) if copy.has_manifest())


def _roomy(job: Job, strategy: str, folders: Sequence[Path]) -> Path:
    """Returns the first folder with room; raises StorageError if none has."""
    rooms = {folder: _usable(room(folder_of(replace(job, dest=folder)))) for folder in folders}
    nodes, volume = job.topology.num_nodes or 1, Volume.of(job.manifest)
    needed = volume.num_bytes
    if strategy != AUTO:
        needed = cost_of(strategy, volume, Machine(nodes, 0), job.options.copies).bytes_per_node
    fitting = [folder for folder in folders if rooms[folder] >= needed]
    if not fitting and strategy == AUTO and nodes > 1:
        fitting = sorted(folders, key=rooms.__getitem__, reverse=True)
    if not fitting:
        shown = ", ".join(f"{folder} ({filesystem_of(folder)}): {format_size(rooms[folder])}" for folder in folders)
        problem = f"no local folder has room for {format_size(needed)}: {shown or 'this node has none'}; name a DEST"
        raise StorageError(errno.ENOSPC, problem) if folders else StorageError(problem)
    return fitting[0]
