"""Bringing the nodes of a job together that are to pass files to each other."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace

from dlio.cluster import liveness, mpi
from dlio.cluster.topology import Topology
from dlio.errors import LauncherError
from dlio.io import files, world
from dlio.locking.owner import Owner, node_id
from dlio.stage.copies.base_folder import check_names
from dlio.stage.meeting.folder import MEET, MeetingFolder, meeting_folder
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import Introduced, Peer
from dlio.stage.planning.job import Job
from dlio.stage.protocol.tcp import TOKEN_BYTES, TcpListener, listening_at

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


def _met(topology: Topology, content: str) -> tuple[Topology, MeetingFolder | Introduced | None]:
    if everyone := mpi.processes(topology):
        return _introduced(everyone, topology, content)
    if 1 in (topology.world_size, topology.num_nodes):
        return replace(topology, node_rank=0, num_nodes=1), None
    if topology.node_rank is None or topology.num_nodes is None:
        everybody = MeetingFolder(meeting_folder(content), topology.rank, topology.world_size, all_come=False)
        topology = topology.numbered(machines(everybody, topology.rank, topology.world_size))
    if topology.num_nodes == 1 or topology.local_rank:
        return topology, None
    return topology, MeetingFolder(meeting_folder(content), topology.node_rank or 0, topology.num_nodes or 0)


def _introduced(everyone: mpi.Processes, topology: Topology, content: str) -> tuple[Topology, Introduced | None]:
    """Returns the topology with the nodes numbered as their machines are, and where this node meets the others.

    Every process calls it. The first process of each machine is to fill its copy; the others have no place, and one
    that fills the copy in its stead reads all from the source.

    Raises:
        StorageError: as `Processes.gather`, or this node cannot listen.
    """
    listening = listening_at(world.address())
    own = Peer(0, listening.getsockname()[:2], Owner.current(), False, 0, 0)
    try:
        found = everyone.gather(f"meet {content}", [node_id(), own.to_json(), world.random_bytes(TOKEN_BYTES).hex()])
        mpi.agreed()
        names = [each[0] if each else "" for each in found]
        found_out = topology.numbered(names)
    except BaseException:
        listening.close()
        raise
    if found_out.local_rank or found_out.num_nodes == 1:
        listening.close()
        return replace(found_out, node_rank=0, num_nodes=1), None
    leaders = [found[names.index(name)] for name in dict.fromkeys(filter(None, names))]
    token = bytes.fromhex(leaders[0][2])
    peers = [Peer.from_json(node, record | {"node": node}) for node, (_, record, _) in enumerate(leaders)]
    return found_out, Introduced(token, peers, TcpListener(listening, token, content))


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
