"""Bringing the nodes of a job together that are to pass files to each other."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.errors import LauncherError
from dlio.io import files, world
from dlio.locking.owner import node_id
from dlio.stage.copies.base_folder import check_names
from dlio.stage.job import Job
from dlio.stage.meeting import mpi
from dlio.stage.meeting.folder import MEET, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting

_POLL_SECONDS = 0.05


def met(job: Job) -> tuple[Job, Meeting | None]:
    """Returns the job with all nodes numbered, and the meeting if this process is to fill its node's copy.

    The nodes find each other by MPI where its launcher started the processes, else in a folder that they all see. Every
    process of the job calls this.

    Raises:
        LauncherError: the launcher does not number the nodes, and they do not find each other.
        StorageError: the nodes have no folder to meet in.
    """
    check_names(job.manifest)
    topology, place = _met(job.topology, content := job.manifest.content_id)
    meeting = Meeting(place, topology.node_rank or 0, topology.num_nodes or 1, content) if place else None
    return replace(job, topology=topology), meeting


def _met(topology: Topology, content: str) -> tuple[Topology, MeetingFolder | mpi.Introduced | None]:
    if everyone := mpi.processes(topology):
        return mpi.introduced(everyone, topology, content)
    if 1 in (topology.world_size, topology.num_nodes):
        return replace(topology, node_rank=0, num_nodes=1), None
    if topology.node_rank is None or topology.num_nodes is None:
        everybody = MeetingFolder(meeting_folder(content), topology.rank, topology.world_size, all_come=False)
        topology = topology.numbered(machines(everybody, topology.rank, topology.world_size))
    if topology.num_nodes == 1 or topology.local_rank:
        return topology, None
    return topology, MeetingFolder(meeting_folder(content), topology.node_rank or 0, topology.num_nodes or 0)


def machines(place: MeetingFolder, rank: int, size: int) -> list[str]:
    """Returns the machine of each of the job's processes, after waiting until all have come.

    Raises:
        LauncherError: some do not come within `liveness.ARRIVAL_SECONDS`.
        StorageError: the folder cannot be written.
    """
    name, deadline = f"rank-%dof{size}.json", world.monotonic() + liveness.ARRIVAL_SECONDS
    with files.storage_errors("write", place.path):
        place.folder.publish(name % rank, json.dumps(node_id()).encode(), 0o600)
        oldest = place.folder.read(name % rank)[1].st_mtime - liveness.ARRIVAL_SECONDS
    found = dict[int, str]()
    while absent := [each for each in range(size) if each not in found]:
        if world.monotonic() > deadline:
            raise LauncherError(
                f"ranks {absent} of {size} did not come to {place.path} in {liveness.ARRIVAL_SECONDS:g} s: start dlio "
                f"stage in every process, and name a folder that all nodes see in {MEET}"
            )
        for each in absent:
            with suppress(OSError, ValueError, RecursionError):
                data, status = place.folder.read(name % each)
                if status.st_uid == os.geteuid() and status.st_mtime >= oldest:  # else of a job that was killed
                    found[each] = str(json.loads(data))
        world.sleep(_POLL_SECONDS * (len(found) < size))
    return [found[each] for each in range(size)]
