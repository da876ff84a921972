"""Whether the nodes have the same bytes of files whose digests their source does not know.

Each node has the digest of what it wrote. Before its copy is published, it asks the node that read a file from the
source for the digest of what that read. Of a divided file no node has read all: there it asks one that all others ask,
too. So bytes that a network, a memory or a disk has changed are noticed. If they differ, or if nobody can tell, since
that node is lost, or since an earlier run has received the file, it is read from the source again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from dlio.errors import DigestError
from dlio.io import files, world
from dlio.io.sizes import counted
from dlio.stage.copies.learned import DIGEST_BYTES, Learned
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.meeting.peer import STUCK_SECONDS, Peer
from dlio.stage.planning.plan import Plan
from dlio.stage.protocol import wire
from dlio.stage.protocol.connection import AgentError, BusyError, Connection
from dlio.stage.protocol.wire import Op, Request

_PATIENCE_SECONDS = 20.0  # without a new digest
_LONGEST_SECONDS = STUCK_SECONDS / 2  # however long the copy took: then this node would be taken for stuck itself
_SOON_SECONDS = 0.05

_log = logging.getLogger(__name__)


def agree(
    meeting: Meeting | None,
    plan: Plan,
    copy: Path,
    learned: Learned,
    at_source: Callable[[int], str],
    took: float,
) -> None:
    """Compares the digests of files with bytes from other nodes with what the nodes that read them have found.

    Args:
        meeting: the other nodes; None if there are none.
        plan: this node's part, all of which it has.
        copy: the folder of the copy.
        learned: the digests that this node has found.
        at_source: returns the digest of a file at its source, which it reads; raises StorageError.
        took: the seconds that this node has taken for its copy; it waits about as long for slower ones.

    Raises:
        DigestError: the source has others; the file is removed, and fetched again by the next run.
        StorageError: the source cannot be read, or the file system refused.
    """
    listed = plan.listed
    left = {number for number in plan.kept if not listed[number].digest and learned.was_received(listed[number].name)}
    since, patience = world.monotonic(), min(_PATIENCE_SECONDS + took, _LONGEST_SECONDS)
    others = dict[int, str]()  # what other nodes have that is not the same
    while meeting and (
        asked := {each for each in left - others.keys() if plan.witness(each, meeting.is_lost) != plan.node}
    ):
        if told := _told_by_all(meeting, plan, asked):
            for number, (peer, digest) in told.items():
                if learned.get(listed[number].name) == (other := f"{files.DEFAULT_DIGEST}:{digest.hex()}"):
                    left.discard(number)
                    continue
                how = "got pieces of it from others, too" if plan.is_divided(number) else "read it from the source"
                others[number] = f"node {peer.node} ({peer.owner.host}), which {how}, has {other}"
            since = world.monotonic()
            continue
        if world.monotonic() - since > patience:
            _log.warning("no other node knows the digests of %s: the source is read", counted(len(asked), "file"))
            break
        world.sleep(_SOON_SECONDS)
    for number in sorted(left):
        _check(listed[number].name, others.get(number, ""), at_source(number), copy, learned)


def _told_by_all(meeting: Meeting, plan: Plan, numbers: Collection[int]) -> dict[int, tuple[Peer, bytes]]:
    """Returns the digests of those files that the nodes which can tell have finished, and these nodes."""
    owned, told = defaultdict[int, list[int]](list), dict[int, tuple[Peer, bytes]]()
    for number in sorted(numbers):
        owned[plan.witness(number, meeting.is_lost)].append(number)
    for owner, wanted in owned.items():
        if peer := meeting.peer(owner):
            try:
                found = meeting.use(peer, partial(_told, wanted))
            except OSError as error:
                _log.info("node %d: %s", owner, error)
                if not isinstance(error, AgentError | BusyError):  # which a node that has ended does not send
                    meeting.failed(owner, error)
            else:
                told.update((number, (peer, digest)) for number, digest in found.items())
    return told


def _told(wanted: Sequence[int], connection: Connection) -> dict[int, bytes]:
    """Returns what a node has found of files; nothing of those that it has not finished; raises OSError."""
    found, first, data = dict[int, bytes](), -wire.MOST_DIGESTS, bytearray()
    limit, patience = wire.MOST_DIGESTS * DIGEST_BYTES, wire.STALL_SECONDS
    for number in wanted:
        if number >= first + wire.MOST_DIGESTS:
            first, data = number, connection.answer(Request(Op.DIGESTS, number), limit=limit, patience=patience)
        start = (number - first) * DIGEST_BYTES
        if any(digest := data[start : start + DIGEST_BYTES]):
            found[number] = bytes(digest)
    return found


def _check(name: str, others: str, at_source: str, copy: Path, learned: Learned) -> None:
    """Compares a file with the source, and names the node that has others; raises DigestError, StorageError."""
    own, path = learned.get(name), copy / name
    if own == at_source:
        if others:
            _log.warning("%s, but %s matches the source: stage again on that node", others, path)
        return
    for each in learned.names_of(name):
        with files.storage_errors("remove", copy / each):
            (copy / each).unlink(missing_ok=True)
    who = f"{others}, and the source" if others else "the source"
    raise DigestError(
        f"{path} has the digest {own}, and {who} has {at_source}: it changed on the way, or at the source; stage "
        "again, and if that does not help, run dlio verify on the other nodes' copies"
    )
