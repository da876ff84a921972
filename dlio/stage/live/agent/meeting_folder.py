"""The folder of a meeting: made, held open, and removed, in a place that users may share.

    $DLIO_MEET/dlio-meet-<user id>/<job>-<content id>/     by default below ~/.local/state/dlio
        token                          of the job; the first that writes it wins
        node-<rank>.json               where a node's agent listens; its modification time is its sign of life

Nobody else can replace $DLIO_MEET, or it is not used. What lies below is reached by descriptor, follows no link, and is
this user's alone: so nothing is written or removed elsewhere, even if the modes of these folders change later.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dlio.errors import StorageError, UsageError
from dlio.io import files
from dlio.io.ground import check_ground
from dlio.io.open_folder import OpenFolder
from dlio.locking.owner import Owner
from dlio.stage.cache import lease

MEET, TOKEN = "DLIO_MEET", "token"
_MEETINGS = "dlio-meet"  # with the user's id, below a folder that may be shared with other users
_CONTENT = 32  # characters of a content id
_FORGOTTEN_SECONDS = 7 * 86400
_SILENT_SECONDS = 3600  # of an agent on another machine
_NODE = re.compile(r"node-[0-9]+\.json")
_UNFINISHED = re.compile(rf"\.({TOKEN}|{_NODE.pattern})\.[0-9a-f]+")

_log = logging.getLogger(__name__)


def meeting_folder(content: str, job: str = "") -> Path:
    """Returns the meeting folder of a job, by default of this one, and a data set.

    Raises:
        UsageError: DLIO_MEET is not set, and this user has no home.
    """
    try:
        base = os.environ.get(MEET) or Path.home() / ".local" / "state" / "dlio"
    except RuntimeError as error:
        raise UsageError(f"this user has no home: name a folder that all nodes see in {MEET}") from error
    run = os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("MASTER_ADDR", "local")
    name = f"{(job or lease.job_name() or run).replace('/', '_')}-{content}"
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
        with _own(opened, path.parent.name, 0o022) as around:  # whoever can write there could replace the meeting
            _forget_old(around)
            around.make(path.name, 0o700).close()
            return _own(around, path.name, 0o077)


def _own(around: OpenFolder, name: str, forbidden: int) -> OpenFolder:
    """Returns a folder, held open; raises StorageError if another user owns it, or has one of the forbidden bits."""
    found = around.below(name)
    if found.owner != os.geteuid() or found.status.st_mode & forbidden:
        found.close()
        raise StorageError(f"{found.path} is not this user's alone: name another folder in {MEET}")
    return found


def node_file(node: int) -> str:
    """Returns the name of a node's file."""
    return f"node-{node}.json"


def leave(meeting: OpenFolder, node: int) -> None:
    """Removes a node's file, and the folder if it was the last; raises OSError."""
    with suppress(FileNotFoundError):
        meeting.unlink(node_file(node))
    _remove_if_left(meeting)


def forget(job: str) -> None:
    """Removes what dead agents of a job, and of jobs that ended long ago, have left in meetings of this user."""
    try:
        path = meeting_folder("", job)
        check_ground(path.parent.parent)
        with OpenFolder.at(path.parent.parent) as opened, _own(opened, path.parent.name, 0o022) as around:
            _forget_old(around)
            for meeting in _meetings(around):
                if meeting.path.name[:-_CONTENT] == path.name:
                    with suppress(OSError):
                        _leave_for_the_dead(meeting)
    except UsageError:  # so there are none
        return
    except StorageError as error:
        _log.warning("meetings of earlier agents are left: %s", error.text)
    except OSError:  # none was ever made
        return


def _leave_for_the_dead(meeting: OpenFolder) -> None:
    """Removes the files of nodes whose agents are dead, and the folder with the last; raises OSError."""
    for name in filter(_NODE.fullmatch, meeting.names()):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            data, status = meeting.read(name)
            is_silent = time.time() - status.st_mtime > _SILENT_SECONDS
            if is_silent or Owner.from_json(json.loads(data)["owner"]).is_alive() is False:
                meeting.unlink(name)
    _remove_if_left(meeting)


def _remove_if_left(meeting: OpenFolder) -> None:
    if not any(map(_NODE.fullmatch, meeting.names())):
        _remove(meeting)


def _remove(meeting: OpenFolder) -> None:
    """Removes a meeting folder, but nothing that is not a meeting's; raises OSError if something else is in it."""
    for name in meeting.names():
        if name == TOKEN or _NODE.fullmatch(name) or _UNFINISHED.fullmatch(name):
            with suppress(FileNotFoundError):
                meeting.unlink(name)
    with meeting.below("..") as around:
        around.rmdir(meeting.path.name)


def _forget_old(around: OpenFolder) -> None:
    """Removes the meeting folders of this user's jobs that ended long ago without removing them."""
    for meeting in _meetings(around):
        with suppress(OSError):
            if time.time() - meeting.status.st_mtime > _FORGOTTEN_SECONDS:
                _remove(meeting)


def _meetings(around: OpenFolder) -> Iterator[OpenFolder]:
    """Yields this user's meeting folders, each open until the next."""
    for name in around.names():
        if re.search(rf"-[0-9a-f]{{{_CONTENT}}}\Z", name):
            with suppress(OSError), around.below(name) as meeting:
                if meeting.owner == os.geteuid():
                    yield meeting
