"""Whether the nodes have the same bytes of files whose digests their source does not know.

Each node has the digest of what it wrote. Before its copy is published, it asks the node that read a file from the
source for the digest of what that read. So bytes that a network, a memory or a disk has changed are noticed.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing

from dlio.errors import DigestError
from dlio.io import files
from dlio.stage.copies.learned import DIGEST_BYTES
from dlio.stage.engine.node import Node
from dlio.stage.meeting.meeting import Meeting, Peer
from dlio.stage.protocol import tcp, wire
from dlio.stage.protocol.connection import Connection, node_client
from dlio.stage.protocol.wire import Op, Request, Status

_PATIENCE_SECONDS = 20.0  # without a new digest
_SOON_SECONDS = 0.05

_log = logging.getLogger(__name__)


def agree(node: Node) -> None:
    """Compares the digests that this node has found with those of the nodes that read the files from the source.

    Raises:
        DigestError: they differ; the file is removed, and fetched again by the next run.
        StorageError: the file system refused.
    """
    plan, meeting = node.plan, node.meeting
    left = {number for number in plan.kept if not plan.listed[number].digest}
    if meeting is None:
        return
    since = time.monotonic()
    while left := _read_by_others(node, meeting, left):
        if found := _compared(node, meeting, left):
            left -= found
            since = time.monotonic()
            continue
        if time.monotonic() - since > _PATIENCE_SECONDS:
            name = plan.listed[min(left)].name
            _log.warning("the digests of %d files, such as %s, could be compared with no other node's", len(left), name)
            return
        time.sleep(_SOON_SECONDS)


def _read_by_others(node: Node, meeting: Meeting, numbers: Collection[int]) -> set[int]:
    return {number for number in numbers if node.plan.owner(number, meeting) != node.plan.node}


def _compared(node: Node, meeting: Meeting, numbers: Collection[int]) -> set[int]:
    """Returns those of the files whose digests could be compared just now; raises as `agree`."""
    owned, done = defaultdict[int, list[int]](list), set[int]()
    for number in sorted(numbers):
        owned[node.plan.owner(number, meeting)].append(number)
    for owner, wanted in owned.items():
        if peer := meeting.peer(owner):
            try:
                told = dict(_told(node, meeting, peer, wanted))
            except OSError as error:
                _log.info("node %d: %s", owner, error)
                continue
            for number, digest in told.items():
                _check(node, number, peer, digest)
            done.update(told)
    return done


def _told(node: Node, meeting: Meeting, peer: Peer, wanted: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yields what a node has found of files; nothing of those that it has not finished; raises OSError."""
    content, client = node.plan.manifest.content_id, node_client(node.plan.node)
    with closing(tcp.connect(peer.address, meeting.token, content, client)) as connection:
        first, data = -wire.MOST_DIGESTS, b""
        for number in wanted:
            if number >= first + wire.MOST_DIGESTS:
                first, data = number, _asked(connection, number)
            start = (number - first) * DIGEST_BYTES
            if any(digest := data[start : start + DIGEST_BYTES]):
                yield number, digest


def _asked(connection: Connection, first: int) -> bytes:
    """Returns the digests of the files from number `first` on."""
    request, limit = Request(Op.DIGESTS, first), wire.MOST_DIGESTS * DIGEST_BYTES
    status, _, length = connection.ask(request, limit=limit, patience=wire.STALL_SECONDS)
    data = bytearray(length if status == Status.OK else 0)
    connection.receive_into(memoryview(data))
    return bytes(data)


def _check(node: Node, number: int, peer: Peer, digest: bytes) -> None:
    file = node.plan.listed[number]
    own, other = node.store.learned.get(file.name), f"{files.DEFAULT_DIGEST}:{digest.hex()}"
    if own == other:
        return
    path = node.folder.path / file.name
    with files.storage_errors("remove", path):
        path.unlink(missing_ok=True)
    raise DigestError(
        f"{path} has the digest {own}, and node {peer.node} ({peer.owner.host}), which read it from the source, has "
        f"{other}: it was changed on its way, or at the source; stage again, and if that does not help, run "
        f"dlio verify on the copy of {peer.owner.host}"
    )
