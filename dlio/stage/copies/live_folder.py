"""The folder of a copy that is being filled: the files that the agent and the loaders of a node exchange.

It is this user's alone. Files read from it are small, regular, not behind a link, and the user's own; others are
ignored.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dlio.cluster import liveness
from dlio.dataset import seal
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.dataset.tree import SMALL_BYTES
from dlio.errors import ManifestError, StorageError
from dlio.io import files, world
from dlio.io.open_folder import OpenFolder
from dlio.locking.owner import Owner
from dlio.stage.copies.base_folder import CONTROL
from dlio.stage.copies.blocks import Blocks
from dlio.stage.copies.folder import LIVE, StagedFolder
from dlio.stage.copies.learned import Learned
from dlio.stage.copies.tree import is_intact

AGENT, SOCKET, TASK, LOG, FILES = "agent.json", "socket", "task.json", "agent.log", "files"
_VERSION = 5  # of the folder: to be changed with its layout, and with what its processes say to each other
_log = logging.getLogger(__name__)
END_SECONDS = 5.0  # for agents to end
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent that runs.

    Attributes:
        owner: its process.
        socket: where it listens to the loaders of its node: a name in this folder, or a path (unix.py).
        node: the rank of its node.
        nodes: the number of nodes.
        may_be_ended: whether `dlio clean` ends it: an agent, but no `dlio stage` that somebody waits for.
        version: of the folder as it knows it; of another one than this process's, only `owner` and this mean anything.
    """

    owner: Owner
    socket: str
    node: int
    nodes: int
    may_be_ended: bool = True
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class LiveFolder:
    """The folder `.dlio/live` of a copy; of a share of it `.dlio/live-<share>`.

    Attributes:
        staged: the copy.
        path: the folder.
    """

    staged: StagedFolder
    path: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.staged.path.joinpath(CONTROL, self._name))

    @property
    def _name(self) -> str:
        return f"{LIVE}-{self.staged.share}" if self.staged.share else LIVE

    @property
    def log(self) -> Path:
        """What the agent logs."""
        return self.path / LOG

    def unfinished(self, file: File) -> Path:
        """Returns the path of a file that is not whole yet, as long as the whole."""
        return self.path.joinpath(FILES, file.name)

    def blocks(self, file: File) -> Path:
        """Returns the path of the bits of an unfinished file: in a folder whose name no file's path begins with."""
        return self.path.joinpath(FILES, CONTROL, file.name)

    @property
    def files(self) -> Path:
        """The folder of unfinished files, by a name that no process gives again: FILES leads to it.

        A process that counts as lost, but still runs, does not reach its successor's files by it; but on a file system
        without symbolic links all have the name FILES.
        """
        link = self.path / FILES
        return self.path / os.readlink(link) if link.is_symlink() else link  # noqa: PTH115

    def present_bytes(self, listed: Sequence[File]) -> int:
        """Returns how many bytes of the files are here, finished or not."""
        lacking = [file for file in listed if not self.staged.has(file)]
        finished = sum(file.num_bytes for file in listed) - sum(file.num_bytes for file in lacking)
        return finished + sum(self.begun(lacking).values())

    def begun(self, lacking: Sequence[File]) -> dict[File, int]:
        """Returns how many bytes are here of each file that is begun, of files that have no final name."""
        found = dict[File, int]()
        for file in lacking if (self.path / FILES / CONTROL).is_dir() else ():
            if file.num_bytes > SMALL_BYTES and (bits := self.blocks(file)).exists():
                with suppress(StorageError):
                    found[file] = Blocks.open(bits, file.num_bytes).present_bytes
        return found

    def lacking(self, wanted: Sequence[File], groups: Mapping[str, Sequence[File]]) -> list[File]:
        """Returns which files and groups the copy lacks: they, or their digests, are not there; raises StorageError."""
        learned, is_published = Learned(self.staged.path), self.staged.has_manifest()
        listed = [file for one in wanted for file in groups.get(one.name, [one])]
        missing = {file.name for file in self.staged.missing(listed)} | learned.lacking(listed)

        def is_here(one: File) -> bool:
            group = groups.get(one.name)
            if group is None or not missing.isdisjoint([file.name for file in group]):
                return group is None and one.name not in missing
            return is_published or is_intact(self.staged.path, group, learned)

        return [one for one in wanted if not is_here(one)]

    def make(self) -> None:
        """Makes the folder; raises StorageError if it cannot be made."""
        with files.storage_errors("create", self.path):
            for folder in (self.path.parent, self.path):
                folder.mkdir(mode=0o700, exist_ok=True)
            self.path.chmod(0o700)
            if not (link := self.path / FILES).is_dir():
                self._remove_files()
                made = self.path / f"{FILES}-{world.random_bytes(8).hex()}"
                made.mkdir(mode=0o700)
                try:
                    link.symlink_to(made.name)
                except FileExistsError:  # another process has made one
                    made.rmdir()
                except OSError:  # a file system without links
                    made.rename(link)

    def open(self) -> OpenFolder:
        """Returns the folder, held open; no link below the copy is followed. Raises OSError."""
        with OpenFolder.at(self.staged.path) as copy:
            return copy.below(CONTROL, self._name)

    def _read(self, name: str, user: int | None = None) -> bytes | None:
        """Returns a file of a user, by default this one; None if there is no such file."""
        with suppress(OSError), self.open() as opened:
            data, status = opened.read(name)
            wanted = os.geteuid() if user is None else user
            if status.st_uid == opened.owner == wanted and not status.st_mode & 0o022:
                return data
        return None

    def agent(self, user: int | None = None) -> AgentRecord | None:
        """Returns the agent of a user, by default of this one, that runs; None if none does.

        Raises:
            StorageError: it is of another version of dlio, which shares the copy's folder with none but its own kind.
        """
        found = self._of_any_version(user)
        if found and found.version != _VERSION:
            raise StorageError(
                f"{found.owner.process} fills {self.staged.path} with another version of dlio, whose live folders have "
                f"the version {found.version}, not {_VERSION}: wait until it has ended, or end it with dlio clean; "
                "then stage again"
            )
        return found

    def _of_any_version(self, user: int | None) -> AgentRecord | None:
        try:
            record = json.loads(self._read(AGENT, user) or b"")
            owner, version = Owner.from_json(record["owner"]), int(record["version"])
            given = (
                record if version == _VERSION else {"socket": "", "node": 0, "nodes": 1, "may_be_ended": True} | record
            )
            where, node, nodes = given["socket"], int(given["node"]), int(given["nodes"])
            found = AgentRecord(owner, where, node, nodes, bool(given["may_be_ended"]), version)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return found if isinstance(where, str) and not self._is_over(owner) else None

    def _is_over(self, owner: Owner) -> bool:
        """Returns whether an agent is dead: of one that is not visible from here, by its heartbeat."""
        with suppress(OSError):
            silent = world.wall() - (self.path / AGENT).lstat().st_mtime
            return owner.is_of_earlier_boot or owner.is_lost(silent, liveness.LOST_SECONDS)
        return True

    @property
    def silent_seconds(self) -> float:
        """How long ago the latest agent renewed its record, or ended and removed its record from the folder."""
        signs = [0.0]
        for path in (self.path, self.path / AGENT):
            with suppress(OSError):
                signs.append(path.lstat().st_mtime)
        return world.wall() - max(signs)

    def beat(self) -> None:
        """Renews the record: other containers and nodes cannot see the agent's process."""
        with suppress(OSError):
            world.touch(f"{self.path}/{AGENT}")

    def write_record(self, record: AgentRecord) -> None:
        """Writes where the loaders of the node find the agent; raises StorageError if the file cannot be written."""
        files.publish_bytes(self.path / AGENT, json.dumps(asdict(record)).encode())

    def remove_record(self) -> None:
        """Removes the agent's record."""
        with suppress(OSError), self.open() as opened:
            opened.unlink(AGENT)

    def remove_unfinished(self) -> None:
        """Removes the unfinished files, and the folder if no agent runs."""
        if self._of_any_version(None) is None:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self._remove_files()

    def _remove_files(self) -> None:
        for each in self.path.glob(f"{FILES}*"):
            if each.is_symlink():
                each.unlink(missing_ok=True)
            else:
                shutil.rmtree(each, ignore_errors=True)

    def signal_agent(self) -> Owner | None:
        """Ends the agent; returns its process, None if none runs. Only a process of the copy's owner is touched."""
        with suppress(OSError):
            user = self.staged.path.lstat().st_uid
            agent = self._of_any_version(user)
            if agent and agent.may_be_ended and agent.owner.is_alive(user):
                os.kill(agent.owner.pid, signal.SIGTERM)
                return agent.owner
        return None

    def task(self) -> str | None:
        """Returns the task that the last agent was given, as text; None if there is none."""
        data = self._read(TASK)
        return data.decode(errors="replace") if data else None

    def keep_task(self, task: str) -> None:
        """Writes the task, which may hold a password in a URL; raises StorageError if the file cannot be written."""
        with files.storage_errors("write", self.path / TASK), self.open() as opened:
            opened.publish(TASK, task.encode(), 0o600)

    def manifest(self) -> Manifest | None:
        """Returns the manifest of the copy as it will be, with the copy as its root; None if there is none yet.

        A damaged one is logged, and counts as none: the next agent writes it again.

        Raises:
            StorageError: it cannot be read.
        """
        try:
            return replace(Manifest.load(self.path), root=self.staged.path)
        except ManifestError as error:
            if (self.path / NAME).exists():
                _log.warning("a staged copy is ignored: %s", error)
            return None

    def keep_manifest(self, manifest: Manifest) -> None:
        """Writes the manifest of the copy as it will be; raises StorageError if the file cannot be written."""
        if not (self.path / NAME).exists() or not seal.is_intact(self.path / NAME):
            manifest.save(self.path)


def end_agents(lives: Iterable[LiveFolder], seconds: float = END_SECONDS) -> dict[LiveFolder, Owner]:
    """Ends the agents of copies: signals all, then waits once for all; returns those that still run."""
    running = {live: agent for live in lives if (agent := live.signal_agent())}
    deadline = world.monotonic() + seconds
    while (running := {live: agent for live, agent in running.items() if agent.is_alive()}) and (
        world.monotonic() < deadline
    ):
        world.sleep(_POLL_SECONDS)
    return running
