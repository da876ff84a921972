"""How the agents of a job find each other: by a small folder that all nodes see and only this user can write.

A node that comes later, or again, writes its file, and is found at the next look. No node waits for another here. A
file is read only when its node is needed, so that ten thousand nodes do not read ten thousand files each.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass

from dlio.cluster import liveness
from dlio.errors import StorageError, UsageError
from dlio.io import files
from dlio.locking.owner import Owner
from dlio.stage.live.agent.meeting_folder import TOKEN, leave, meeting_folder, node_file, open_meeting
from dlio.stage.live.tcp import TOKEN_BYTES, Address

INTERFACE = "DLIO_INTERFACE"
JOIN_SECONDS = 5.0  # after which a node that has not come is taken for lost, until it comes
LATE_SECONDS = 60.0  # so long its part is left to it where nobody waits: a thousand nodes start in that time
_FRESH_SECONDS = 1.0  # a file is read again after so long
_SOON_SECONDS = 0.1  # between two looks for a node that has not come yet
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node's agent.

    Attributes:
        node: the rank of its node.
        address: where it listens.
        owner: its process.
        is_complete: whether it has all that its node keeps.
        staged: the bytes that it has.
        total: the bytes that it keeps in the end.
        rate: bytes a second since it began.
        waiting_for: what failed last; "" if nothing.
    """

    node: int
    address: Address
    owner: Owner
    is_complete: bool
    staged: int
    total: int
    rate: int = 0
    waiting_for: str = ""


class Meeting:
    """This node's part; for any number of threads.

    Args:
        content: the content id of the data set.
        node: this node's rank.
        num_nodes: of the job.

    Raises:
        StorageError: the folder cannot be made, or is open to other users.
    """

    def __init__(self, content: str, node: int, num_nodes: int) -> None:
        self.node, self.num_nodes = node, num_nodes
        self.path = meeting_folder(content)
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._signs = liveness.Signs()
        self._seen: dict[int, tuple[float, Peer | None]] = {}
        self._down: dict[int, float] = {}
        self._came: set[int] = set()
        self._folder = open_meeting(self.path)
        self._close = weakref.finalize(self, self._folder.close)
        self.token = self._token()

    def _token(self) -> bytes:
        """Returns the job's token, made if this node is the first."""
        path, mine = self.path / TOKEN, f".{TOKEN}.{os.urandom(8).hex()}"
        with files.storage_errors("write", path):
            self._folder.write_new(mine, os.urandom(TOKEN_BYTES), 0o600)
            with suppress(FileExistsError):
                self._folder.link(mine, TOKEN)
            self._folder.unlink(mine)
            data, status = self._folder.read(TOKEN)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or len(data) != TOKEN_BYTES:
            raise StorageError(f"{path} holds no token that only you may read: remove {self.path}")
        return data

    def tell(self, peer: Peer) -> None:
        """Writes this node's file; raises StorageError if it cannot be written."""
        with files.storage_errors("write", self.path):
            self._folder.publish(node_file(self.node), json.dumps(asdict(peer)).encode())

    def beat(self) -> None:
        """Shows that this node lives."""
        with suppress(OSError):
            self._folder.touch(node_file(self.node))

    def leave(self) -> None:
        """Removes this node's file, and the folder if it was the last; nothing else may be called afterwards."""
        with suppress(OSError):
            leave(self._folder, self.node)
        self._close()

    def peer(self, node: int) -> Peer | None:
        """Returns a node's agent; None if it has not come, has left, or is silent."""
        with self._lock:
            now = time.monotonic()
            looked, found = self._seen.get(node, (0.0, None))
            is_expected = found is None and self.is_gathering
            if not looked or now - looked > (_SOON_SECONDS if is_expected else _FRESH_SECONDS):
                found = self._look(node)
                self._seen[node] = (now, found)
            if found:
                self._came.add(node)
            return found

    def _look(self, node: int) -> Peer | None:
        try:
            data, status = self._folder.read(node_file(node))
            record = json.loads(data)
            host, port = record["address"]
            peer = Peer(
                node, (str(host), int(port)), Owner.from_json(record["owner"]), bool(record["is_complete"]),
                int(record["staged"]), int(record["total"]), int(record["rate"]), str(record["waiting_for"]),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        silent = self._signs.note((node, peer.owner), status.st_mtime_ns)
        is_dead = status.st_uid != os.geteuid() or silent > liveness.LOST_SECONDS or peer.owner.is_alive() is False
        return None if is_dead else peer

    def all_peers(self) -> list[Peer]:
        """Returns the agents of all other nodes that are there, for a report."""
        others = (self.peer(node) for node in range(self.num_nodes) if node != self.node)
        return [peer for peer in others if peer]

    def avoid(self, node: int, seconds: float) -> None:
        """Takes a node for lost for a while."""
        with self._lock:
            self._down[node] = time.monotonic() + seconds

    def expects(self, node: int) -> bool:
        """Returns whether a node has never been here, and may be starting still."""
        is_new = self.peer(node) is None and node not in self._came
        return is_new and time.monotonic() - self._began < LATE_SECONDS

    @property
    def is_gathering(self) -> bool:
        """Whether nodes that have not come are still expected."""
        return time.monotonic() - self._began < JOIN_SECONDS

    def __contains__(self, node: object) -> bool:
        """Returns whether a node is lost: `owner_now` asks."""
        if node == self.node or not isinstance(node, int):
            return False
        if self._down.get(node, 0.0) > time.monotonic():
            return True
        return self.peer(node) is None and not self.is_gathering


def host_address() -> str:
    """Returns the address of this node that other nodes reach: DLIO_INTERFACE, else that of the host's own name.

    Raises:
        UsageError: DLIO_INTERFACE names no interface with an address.
    """
    if named := os.environ.get(INTERFACE):
        return _address_of(named)
    with suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            return found
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: only asks which interface leads out
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _address_of(named: str) -> str:
    """Returns the address of an interface, or the address itself."""
    with suppress(OSError):
        return socket.inet_ntoa(socket.inet_aton(named))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", named.encode()[:15]))
        return socket.inet_ntoa(found[20:24])
    except OSError as error:
        raise UsageError(f"{INTERFACE}={named}: {error.strerror}: name an interface with an IPv4 address") from error
