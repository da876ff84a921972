"""A folder that all nodes see, in which they meet: made, held open, and removed, in a place that users may share.

    $DLIO_MEET/dlio-meet-<user id>/<job>-<content id>/     by default below ~/.local/state/dlio
        token                          of the job; the first that writes it wins
        node-<rank>of<nodes>.json      where a node listens, and how far it was at first
        left-<rank>of<nodes>.json      the last word of a node, how far it came in the end
        rank-<rank>of<size>.json       the machine of a process, if the launcher does not number the nodes

Outside a scheduler a job is named after what its launcher gives. Two jobs that still have one name do not meet if they
have other numbers of nodes. Else they stage the same: each node is known by the process that came first, and the other
one asks the others, but reports nothing as long as that runs. Nobody else can replace $DLIO_MEET, or it is not used.
What lies below is reached by descriptor, follows no link, and is this user's alone: so nothing is written or removed
elsewhere, even if the modes of these folders change later.
"""

from __future__ import annotations

import json
import logging
import os
import re
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dlio.cluster.launchers import job_name, launch_name
from dlio.errors import StorageError, UsageError
from dlio.io import files, world
from dlio.io.ground import check_ground
from dlio.io.open_folder import OpenFolder
from dlio.locking.owner import Owner
from dlio.stage.meeting.peer import JOIN_SECONDS, LATE_SECONDS, Peer
from dlio.stage.protocol.tcp import TOKEN_BYTES, TcpListener

MEET, TOKEN, SHOWN, LISTED = "DLIO_MEET", "token", ".shown", ".listed"
_MEETINGS = "dlio-meet"  # with the user's id, below a folder that may be shared with other users
_CONTENT = 32  # characters of a content id
_FORGOTTEN_SECONDS, _SILENT_SECONDS = 7 * 86400, 3600  # the latter: an agent on another machine
_NODE, _LEFT, _RANK = (re.compile(rf"{each}-([0-9]+)of([0-9]+)\.json") for each in ("node", "left", "rank"))
# An unfinished file, or a record of before the number of nodes was in its name.
_OTHER = re.compile(rf"\.({TOKEN}|(node|left|rank)-[0-9]+of[0-9]+\.json)\.[0-9a-f]+|node-[0-9]+\.json")

_log = logging.getLogger(__name__)


class MeetingFolder:
    """A node's record for the others, in files; for any number of threads. Raises StorageError if it cannot be made.

    Args:
        path: the folder, as `meeting_folder` names it.
        node: this node's rank.
        num_nodes: of the job; or its processes, if each is told of.
        all_come: whether the folder stays until all have come; else it is removed with the last that is present.

    Attributes:
        folder: held open.
        token: the job's.
        is_joined_by_others: others than this process may join in this node's stead.
    """

    is_joined_by_others = True

    def __init__(self, path: Path, node: int, num_nodes: int, *, all_come: bool = True) -> None:
        self.path, self._node, self._num_nodes, self._all_come = path, node, num_nodes, all_come
        self._names = [f"{kind}-%dof{num_nodes}.json" for kind in ("node", "left")]
        self._own, self._last = (name % node for name in self._names)
        self._new = set[int]()  # nodes that have told something since this one came
        self.folder = open_meeting(self.path)
        self._coming = f".{TOKEN}.{world.random_bytes(8).hex()}"
        self._close = weakref.finalize(self, _close, self.folder, self._coming, all_come)
        self.token, self._came = self._token()

    def _token(self) -> tuple[bytes, int]:
        """Returns the job's token, made if this node is the first, and when this node came, by the file system's clock.

        Its draft says that this node is coming.
        """
        path = self.path / TOKEN
        with files.storage_errors("write", path):
            self.folder.write_new(self._coming, world.random_bytes(TOKEN_BYTES), 0o600)
            with suppress(FileExistsError):
                self.folder.link(self._coming, TOKEN)
            data, status = self.folder.read(TOKEN)
            came = self.folder.read(self._coming)[1].st_mtime_ns
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or len(data) != TOKEN_BYTES:
            raise StorageError(f"{path} does not hold a token that only you can read: remove {self.path}")
        return data, came

    def listener(self, content: str) -> TcpListener:
        """Returns where this node listens to the others; raises StorageError."""
        return TcpListener(world.address(), self.token, content)

    def tell(self, peer: Peer) -> bool:
        """Tells how this node is reached; returns whether no other process has its number. Raises StorageError."""
        with files.storage_errors("write", self.path):
            if not (is_hidden := self._is_of_another()):
                self.folder.publish(self._own, json.dumps(peer.to_json()).encode())
                self._unlink(self._last)
            with suppress(FileNotFoundError):  # it was unlinked by an earlier call
                (self.folder.touch if is_hidden else self.folder.unlink)(self._coming)
        return not is_hidden

    def find(self, node: int) -> Peer | None:
        """Returns what a node has told; None if it has not come, as far as anybody can see."""
        return next(filter(None, (self._record(node, name % node) for name in self._names)), None)

    def last_words(self, heard_out: set[int]) -> Iterator[Peer]:
        """Yields the last words that are new; keeps in `heard_out` which nodes have left one, for the next call."""
        with suppress(OSError):
            names = set(self.folder.names())
            left = {node for node in range(self._num_nodes) if self._names[1] % node in names}
            new = left - heard_out
            heard_out &= left
            heard_out |= new
            for node in sorted(new):
                if peer := self._record(node, self._names[1] % node):
                    yield peer

    def _record(self, node: int, name: str) -> Peer | None:
        """Returns what a node has told in a file; None if there is none, or it is the last word of an earlier run."""
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            data, status = self.folder.read(name)
            peer = Peer.from_json(node, json.loads(data))
            is_earlier = peer.has_left and status.st_mtime_ns < self._came - JOIN_SECONDS * 1e9
            if status.st_mtime_ns > self._came:
                self._new.add(node)
            return peer if status.st_uid == os.geteuid() and not is_earlier else None
        return None

    def may_be_old(self, node: int) -> bool:
        """Returns whether what a node has told was there when this one came: an earlier run may have left it."""
        return node not in self._new

    def leave(self, last: Peer | None) -> None:
        """Ends this node's part, with a last word for nodes that start late, or with none; nothing may be called then.

        It removes the folder if all have left.
        """
        with suppress(OSError):
            self._unlink(self._coming)
            if not self._is_of_another():
                if last:
                    self.folder.publish(self._last, json.dumps(replace(last, has_left=True).to_json()).encode())
                self._unlink(self._own)
            if not self._record(0, self._names[0] % 0):  # else thousands would list thousands of names, and find it
                _remove_if_left(self.folder, all_come=self._all_come and last is not None)
        self._close()

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.folder.unlink(name)

    def _is_of_another(self) -> bool:
        """Returns whether this node's file is that of another running process: two jobs may stage the same at once."""
        peer = self._record(self._node, self._own)
        return bool(peer and peer.owner != Owner.current() and peer.owner.is_alive())


def meeting_folder(content: str, job: str = "", kind: str = "") -> Path:
    """Returns a job's folder for a data set, by default this job's.

    Of other kinds are SHOWN, where nodes only show how far they are, and LISTED, where one lists a folder for all.

    Raises:
        UsageError: DLIO_MEET is not set, and this user has no home.
    """
    try:
        base = os.environ.get(MEET) or Path.home() / ".local" / "state" / "dlio"
    except RuntimeError as error:
        raise UsageError(f"this user has no home: name a folder that all nodes see in {MEET}") from error
    name = f"{(job or job_name() or launch_name()).replace('/', '_')}{kind}-{content}"
    return Path(base).absolute() / f"{_MEETINGS}-{os.geteuid()}" / name


def open_meeting(path: Path) -> OpenFolder:
    """Returns a meeting folder, made if it is missing and held open, after removing those of jobs that ended long ago.

    Raises:
        StorageError: it cannot be made, other users can read or replace it, or it is another user's.
    """
    base = path.parent.parent
    with files.storage_errors("create", base):
        base.mkdir(parents=True, exist_ok=True)
    check_ground(base)
    with files.storage_errors("create", path), OpenFolder.at(base) as opened:
        opened.make(path.parent.name, 0o700).close()
        with _own(opened, path.parent.name, 0o022) as around:  # a user who can write there could replace the meeting
            _forget_old(around)
            around.make(path.name, 0o700).close()
            return _own(around, path.name, 0o077)


def _own(around: OpenFolder, name: str, forbidden: int) -> OpenFolder:
    """Returns a folder, held open; raises StorageError if another user owns it, or has one of the forbidden bits."""
    found = around.below(name)
    if found.owner != os.geteuid() or found.status.st_mode & forbidden:
        found.close()
        raise StorageError(
            f"{found.path} belongs to another user, or others can change it: name another folder in {MEET}"
        )
    return found


def forget(job: str) -> None:
    """Removes what dead agents of a job, and of jobs that ended long ago, have left in meetings of this user."""
    try:
        path = meeting_folder("", job)
        check_ground(path.parent.parent)
        with OpenFolder.at(path.parent.parent) as opened, _own(opened, path.parent.name, 0o022) as around:
            _forget_old(around)
            for meeting in _meetings(around):
                if meeting.path.name[:-_CONTENT] in [f"{path.name[:-1]}{kind}-" for kind in ("", SHOWN, LISTED)]:
                    with suppress(OSError):
                        _leave_for_the_dead(meeting)
    except StorageError as error:
        _log.warning("meetings of earlier agents are left: %s", error.text)
    except (UsageError, OSError):  # none was ever made
        return


def _leave_for_the_dead(meeting: OpenFolder) -> None:
    """Removes the files of nodes whose agents are dead, and the folder with the last; raises OSError."""
    for name in filter(_NODE.fullmatch, meeting.names()):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            data, status = meeting.read(name)
            owner = Owner.from_json(json.loads(data)["owner"])
            if owner.is_lost(world.wall() - status.st_mtime, _SILENT_SECONDS):
                meeting.unlink(name)
    _remove_if_left(meeting)


def _close(meeting: OpenFolder, coming: str, all_come: bool) -> None:
    """Closes a meeting; a process that has told nothing is not coming any more."""
    with suppress(OSError):
        meeting.unlink(coming)
        if all_come:
            _remove_if_left(meeting, all_come=True)
    meeting.close()


def _remove_if_left(meeting: OpenFolder, *, all_come: bool = False) -> None:
    """Removes the folder if no node is there or coming, if `all_come` after those of each job; raises OSError."""
    names = meeting.names()
    left, here = ([found for name in names if (found := kind.fullmatch(name))] for kind in (_LEFT, _NODE))
    came = Counter(num_nodes for _, num_nodes in dict.fromkeys(each.groups() for each in left + here))
    is_early = all_come and not (came and all(count >= int(num_nodes) for num_nodes, count in came.items()))
    drafts = filter(None, (meeting.look(name) for name in names if name.startswith(f".{TOKEN}.")))
    is_coming = any(world.wall() - each.st_mtime < LATE_SECONDS for each in drafts)  # maybe of a job of the same name
    if not (is_coming or is_early or here):
        _remove(meeting)


def _remove(meeting: OpenFolder) -> None:
    """Removes a meeting folder, but nothing that is not a meeting's; raises OSError if something else is in it."""
    for name in meeting.names():
        if name == TOKEN or any(each.fullmatch(name) for each in (_NODE, _LEFT, _RANK, _OTHER)):
            with suppress(FileNotFoundError):
                meeting.unlink(name)
    with meeting.below("..") as around:
        around.rmdir(meeting.path.name)


def _forget_old(around: OpenFolder) -> None:
    """Removes the meeting folders of this user's jobs that ended long ago without removing them."""
    for meeting in _meetings(around):
        with suppress(OSError):
            if world.wall() - meeting.status.st_mtime > _FORGOTTEN_SECONDS:
                _remove(meeting)


def _meetings(around: OpenFolder) -> Iterator[OpenFolder]:
    """Yields this user's meeting folders, each open until the next."""
    for name in around.names():
        if re.search(rf"-[0-9a-f]{{{_CONTENT}}}\Z", name):
            with suppress(OSError), around.below(name) as meeting:
                if meeting.owner == os.geteuid():
                    yield meeting
