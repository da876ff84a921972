"""Claim files: numbered, made by link(2), renewed by a heartbeat; claim.py describes their meaning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlio.cluster import liveness
from dlio.io import files, world
from dlio.io.open_folder import Below, OpenFolder
from dlio.locking.owner import Owner


@dataclass(frozen=True, slots=True)
class Claim:
    """One numbered claim file as read.

    Attributes:
        number: counts up; the highest number is in force.
        owner: the process that made it.
        token: a unique name, for the owner's unfinished files.
        state: "held", "released" (another process may continue), or why the owner failed.
        errno: the system's number of that failure, if it has one.
    """

    number: int
    owner: Owner
    token: str
    state: str = "held"
    errno: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the owner has surely stopped working."""
        return self.state != "held" or self.owner.is_alive() is False


def latest(folder: Below) -> Claim | None:
    """Returns the claim in force, or None if there is no claim.

    Raises:
        StorageError: the folder cannot be read.
    """
    with files.storage_errors("read the claims in", folder.path):
        try:
            with folder.open() as opened:
                return latest_in(opened)
        except FileNotFoundError:
            return None


def latest_in(folder: OpenFolder) -> Claim | None:
    """Returns the claim in force, or None if there is no claim, or it was removed just now.

    Raises:
        OSError: the folder or the claim cannot be read.
    """
    number = max((int(name) for name in folder.names() if _is_number(name)), default=None)
    if number is None:
        return None
    try:
        return _parse(number, folder.read(str(number))[0])
    except FileNotFoundError:
        return None


def is_in_force(folder: Below, claim: Claim) -> bool:
    """Returns whether no other process has succeeded the owner of a claim; raises as `latest`."""
    found = latest(folder)
    return found is None or found.token == claim.token


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def _parse(number: int, text: bytes) -> Claim:
    try:
        record = json.loads(text)
        return Claim(number, Owner.from_json(record["owner"]), _token(record), str(record["state"]), _errno(record))
    except (ValueError, KeyError, TypeError, RecursionError):  # cut off by a crash: its owner is dead
        return Claim(number, Owner("", "", 0, 0), "unknown", "released")


def _token(record: Any) -> str:
    token = record["token"]
    if not isinstance(token, str) or not token.isalnum():
        raise ValueError("a token names a folder and has letters and digits only")
    return token


def _errno(record: Any) -> int | None:
    number = record.get("errno")
    return number if type(number) is int else None


def make(folder: Below, number: int) -> Claim | None:
    """Returns this process's claim with that number, or None if another process made it first.

    Raises:
        StorageError: the folder cannot be written.
    """
    claim = Claim(number, Owner.current(), world.random_bytes(8).hex())
    with files.storage_errors("claim", folder.path), folder.make() as opened:
        try:
            opened.write_new(f".{claim.token}", _text(claim))
            opened.link(f".{claim.token}", str(number))
        except (FileExistsError, FileNotFoundError):  # made by another process, or the folder was removed
            return None
        finally:
            with suppress(FileNotFoundError):
                opened.unlink(f".{claim.token}")
    return claim


def _text(claim: Claim) -> bytes:
    record = {"owner": claim.owner.to_json(), "token": claim.token, "state": claim.state, "errno": claim.errno}
    return json.dumps(record).encode()


def rewrite(folder: Below, claim: Claim) -> None:
    """Notes in the claim how it ended; if that fails, the owner's death shows it."""
    with suppress(OSError), folder.open() as opened:
        opened.publish(str(claim.number), _text(claim))


def remove(folder: Below) -> None:
    """Removes the claims on work that is done.

    Raises:
        StorageError: the folder cannot be read, or a claim cannot be removed.
    """
    with files.storage_errors("remove the claims in", folder.path), folder.open() as opened:
        _unlink(opened, opened.names())


def remove_in(folder: OpenFolder, up_to: int) -> None:
    """Removes the claims of the folder's owner with numbers up to `up_to`, and its unfinished ones.

    Raises:
        OSError: the folder cannot be read, or a claim cannot be removed.
    """
    due = [name for name in folder.names() if name.startswith(".") or (_is_number(name) and int(name) <= up_to)]
    _unlink(folder, [name for name in due if (status := folder.look(name)) and status.st_uid == folder.owner])


def _unlink(folder: OpenFolder, names: Iterable[str]) -> None:
    for name in names:
        if not folder.has_folder(name):
            with suppress(FileNotFoundError):
                folder.unlink(name)


@contextmanager
def heartbeat(folder: Below, number: int) -> Iterator[None]:
    """Renews the modification time of a claim in its own thread, until the context is left."""
    stop = world.event()
    thread = world.start(partial(_beat, folder, number, stop), "dlio-claim")
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _beat(folder: Below, number: int, stop: world.Event) -> None:
    with suppress(OSError), folder.open() as opened:  # the file system fails: the work itself reports it
        while not stop.wait(liveness.BEAT_SECONDS):
            with suppress(OSError):  # once only, maybe: the next beat tells that this process lives
                opened.touch(str(number))


def modified(folder: Below, number: int) -> float:
    """Returns when a claim was renewed, in seconds since 1970; 0 if it was removed.

    Raises:
        StorageError: the folder cannot be read.
    """
    with (
        files.storage_errors("access the claims in", folder.path),
        suppress(FileNotFoundError),
        folder.open() as opened,
    ):
        status = opened.look(str(number))
        return status.st_mtime if status else 0.0
    return 0.0
