"""Bringing the nodes of a job together that are to pass files to each other."""

from __future__ import annotations

from dataclasses import replace

from dlio.cluster.topology import Topology
from dlio.locking.owner import node_id
from dlio.stage.copies import lease
from dlio.stage.copies.base_folder import check_names
from dlio.stage.job import Job
from dlio.stage.meeting import mpi
from dlio.stage.meeting.folder import MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting, Place, numbered


def met(job: Job) -> tuple[Job, Meeting | None]:
    """Returns the job with all nodes numbered, and the meeting if this process is to fill its node's copy.

    The nodes find each other by MPI where its launcher started the processes, else in a folder that they all see. Every
    process of the job calls this.

    Raises:
        LauncherError: the launcher does not number the nodes, and they do not find each other.
        StorageError: the nodes have no folder to meet in.
    """
    check_names(job.manifest)
    topology, place = _met(job.topology, job.manifest.content_id)
    meeting = Meeting(place, topology.node_rank or 0, topology.num_nodes or 1) if place else None
    return replace(job, topology=topology), meeting


def _met(topology: Topology, content: str) -> tuple[Topology, Place | None]:
    if everyone := mpi.processes(topology):
        return mpi.introduced(everyone, topology, content)
    if 1 in (topology.world_size, topology.num_nodes):
        return replace(topology, node_rank=0, num_nodes=1), None
    path = meeting_folder(content)
    if topology.node_rank is None or topology.num_nodes is None:
        place = MeetingFolder(path, topology.rank, topology.world_size, all_come=False)
        machines = place.machines(node_id())
        topology = numbered(topology, machines)
    if topology.num_nodes == 1 or topology.local_rank:
        return topology, None
    place = MeetingFolder(path, topology.node_rank or 0, topology.num_nodes or 0, is_alone=not lease.job_name())
    return topology, place
