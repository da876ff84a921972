"""Starting the agent of a node: one runs, however many processes ask for it at once."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from dlio.cluster.launchers import job_name
from dlio.cluster.topology import Topology
from dlio.dataset.location import TREE
from dlio.errors import LauncherError, StorageError, UsageError
from dlio.io.arrivals import NoRoomError
from dlio.io.files import FULL
from dlio.io.open_folder import TakenError
from dlio.locking.owner import Owner
from dlio.stage.choose.choice import chosen
from dlio.stage.client import launch
from dlio.stage.client.status import answer, copies
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import check_names
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.copies.locations import folder_for_us, in_folder_for_us, remember
from dlio.stage.copies.node_cache import await_leader
from dlio.stage.planning.job import NO_OPTIONS, Asked, Job, Options
from dlio.stage.planning.plan import Plan
from dlio.stage.sources import StagingSource, source_of
from dlio.stage.sources.anything import TreeFolder, anything
from dlio.stage.strategies import AUTO, Strategy, load

_FORGOTTEN_SECONDS = 86400.0  # outside a scheduler: an agent killed so long ago was another job's
START_SECONDS = 60.0  # a shared file system may be slow to load Python

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """The task of an agent, sent to its process as JSON.

    Attributes:
        dataset: a folder or a URL.
        dest: the folder that the copy lies in.
        strategy: its name, or the dotted path of its module.
        topology: this process's rank and node in the job.
        options: what the user asked for.
        cache_bytes: the most that this node keeps; None for as much as there is room.
        job: the scheduler's name for it; "" outside a scheduler.
        holder: of its lease.
        modules: the folders in which a strategy of another package is found.
        listed: the list of what is staged as it is, so that it is not made twice; "" to make it.
    """

    dataset: str
    dest: Path
    strategy: str
    topology: Topology
    options: Options = NO_OPTIONS
    cache_bytes: int | None = None
    job: str = field(default_factory=job_name)
    holder: Owner = field(default_factory=lease.holder_here)
    modules: Sequence[str] = ()
    listed: str = ""

    def to_json(self) -> str:
        """Returns the task as text."""
        return json.dumps(asdict(self) | {"dest": str(self.dest)})

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Returns the task that a process of the same dlio wrote."""
        record: dict[str, Any] = json.loads(text)
        topology, options = Topology(**record["topology"]), Options(**record["options"])
        holder = Owner.from_json(record["holder"])
        given = {"dest": Path(record["dest"]), "topology": topology, "options": options, "holder": holder}
        return cls(**record | given)

    @classmethod
    def of(cls, live: LiveFolder) -> Task | None:
        """Returns the task that the last agent of a copy was given; None if there is none that can be read."""
        with suppress(ValueError, KeyError, TypeError, RecursionError, LauncherError):
            return cls.from_json(live.task() or "")
        return None

    @property
    def is_ours(self) -> bool:
        """Whether this process belongs to the job, and to the node as far as that says what is kept.

        Raises LauncherError as `Topology.from_env`.
        """
        if self.job != job_name():
            return False
        return not load(self.strategy).NEEDS.parts or Topology.from_env().node_and_count == self.topology.node_and_count

    def start_again(self) -> StagedFolder:
        """Returns as `ensure_agent`, asked for the same on the node that this process has in its job now."""
        return ensure_agent(
            self.dataset, self.dest, strategy=self.strategy, options=self.options, cache_bytes=self.cache_bytes
        )

    def planned(self) -> tuple[Job, Plan, str]:
        """Returns the job, this node's part if it has room for all, and the name of the copy; raises DlioError."""
        source = TreeFolder(Path(self.dataset), self.listed.encode()) if self.listed else anything(self.dataset)
        job = Job(source, self.dest, self.topology, self.options, holder=self.holder)
        return job, *_planned(job, load(self.strategy))


def _planned(job: Job, chosen: Strategy) -> tuple[Plan, str]:
    check_names(job.manifest)
    numbers = job.topology.node_and_count or (0, 1)  # a launcher that does not number the nodes leaves each to itself
    return chosen.plan(job).among(*numbers), chosen.copy_name(job)


def ensure_agent(
    dataset: str | os.PathLike[str],
    dest: str | os.PathLike[str] | None = None,
    *,
    source: StagingSource | None = None,
    cache_bytes: int | None = None,
    **asked: Unpack[Asked],
) -> StagedFolder:
    """Returns the folder of a copy that is complete, or that an agent of this node fills, which is started if need be.

    The copy is leased for this job. Every process of a job may call it, at once.

    Args:
        dataset, dest: as `dlio.stage`.
        source: of `dataset`; by default that of a data set only.
        cache_bytes: the most that this node keeps; by default as much as there is room.
        asked: see `Asked`; the strategy is by default that of this job's agent that is here already.

    Raises:
        NoRoomError: the disk is too full for an agent of a data set, even after unused copies were removed.
        DlioError: as `dlio.stage`, or the agent could not start.
    """
    name = os.fspath(dataset) if "://" in os.fspath(dataset) else os.path.abspath(dataset)  # noqa: PTH100
    source = source or source_of(name)
    if asked.get("strategy", AUTO) == AUTO and (task := _under_way(source.manifest.content_id, dest)):
        dest, cache_bytes = task.dest, task.cache_bytes if cache_bytes is None else cache_bytes
        asked |= {"strategy": task.strategy, "options": asked.get("options", NO_OPTIONS).over(task.options)}
    if cache_bytes is not None and source.manifest.format == TREE:
        raise UsageError(f"{source.manifest.path} is copied as a whole: leave out the limit of what this node keeps")
    listed = ""
    if isinstance(source, TreeFolder):
        name, listed = str(source.path), source.table.decode()
    try:
        choice = chosen(source, dest, in_background=True, **asked)
        job, modules = choice.job, [os.path.abspath(each) for each in sys.path] if "." in choice.name else []  # noqa: PTH100
        task = Task(
            name, job.dest, choice.name, job.topology, job.options, cache_bytes, modules=modules, listed=listed
        )  # fmt: skip
        plan, copy = _planned(job, load(choice.name))
        return in_folder_for_us(job.dest, copy, plan.wanted, partial(_ensured, task, plan, asked.get("strategy", AUTO)))
    except StorageError as error:
        if error.errno not in FULL or source.manifest.format == TREE:
            raise
        advice = f"{source} is read where it is, and not cached on this node, until there is room and it starts again"
        raise NoRoomError(error.errno, f"{error.text}: {advice}") from error


def _ensured(task: Task, plan: Plan, strategy: str, folder: StagedFolder) -> StagedFolder:
    """Returns the folder of a copy that an agent fills or has filled; raises TakenError if it is another user's now.

    `strategy` is what the user asked for.
    """
    remember(task.dest)
    await_leader(task.topology, lambda: is_served(folder, plan))  # rather than start many agents that give up
    _check_asked(task, strategy, folder, plan)  # before the lease, which nobody would give back
    lease.take(folder)
    if answer(folder) is None and not _needs_none(folder, plan):
        try:
            launch.agent(task.to_json(), LiveFolder(folder).log)
        except StorageError as error:
            if plan.needs_peers or not folder.holds(plan.wanted):
                if task.topology.world_size == 1 and not folder.path.exists():  # else another process may have begun it
                    with suppress(StorageError):  # the first error counts
                        lease.drop(folder.dest, task.job, folder.copy)
                raise
            _log.info("%s is not served to other nodes: %s", folder.path, error.text)
        lease.take(folder)  # there may have been no room for one before
    if folder_for_us(task.dest, folder.copy, plan.wanted) != folder:  # so the agent has chosen another, too
        raise TakenError(f"{folder.path} was created by another user first: stage again")
    return folder


def _check_asked(task: Task, strategy: str, folder: StagedFolder, plan: Plan) -> None:
    """Raises UsageError if a task asks for what this job's agent, which fills, does not do; warns of another job's.

    A strategy may give the copy another name: then the agent of that other copy counts.
    """
    for copy in dict.fromkeys((folder, *copies(plan.manifest.content_id, task.dest))):
        live, is_same = LiveFolder(copy), copy == folder
        running = Task.of(live) if live.agent() else None
        if running is None or (copy.holds(plan.wanted) if is_same else copy.has_manifest()):
            continue
        for option, wanted, given in (
            ("cache size", task.cache_bytes if is_same else None, running.cache_bytes),
            ("mode", _octal(task.options.mode) if is_same else None, _octal(running.options.mode) or "the source's"),
            ("strategy", None if strategy == AUTO else strategy, running.strategy),
        ):
            if wanted in (None, given):
                continue
            if running.is_ours:
                raise UsageError(
                    f"the agent that fills {copy.path} has another {option}, {given}: leave the {option} out, or "
                    f"end the agent first with dlio clean {copy.dest}"
                )
            more = "" if is_same else f", and {folder.path} is one more copy"
            _log.warning("%s is filled for another job, with another %s, which stays%s", copy.path, option, more)


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:o}"


def _under_way(content_id: str, dest: str | os.PathLike[str] | None) -> Task | None:
    """Returns the task of an agent of this job on this node, None if there is none."""
    found = (task_of_job(LiveFolder(copy)) for copy in copies(content_id, dest))
    return next((task for task in found if task), None)


def task_of_job(live: LiveFolder) -> Task | None:
    """Returns the task of the agent of a copy, if that is this job's and runs or was killed; else None."""
    task = Task.of(live)
    is_recent = task is not None and (task.job or live.silent_seconds < _FORGOTTEN_SECONDS)
    return task if task and is_recent and task.is_ours else None


def is_served(folder: StagedFolder, plan: Plan) -> bool:
    """Returns whether an agent serves a copy, or it needs none: other nodes may need it though it is complete."""
    return LiveFolder(folder).agent() is not None or _needs_none(folder, plan)


def _needs_none(folder: StagedFolder, plan: Plan) -> bool:
    return plan.num_nodes == 1 and folder.holds(plan.wanted)
