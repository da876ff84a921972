"""Claim files: numbered, made by link(2), renewed by a heart; what they mean is said in claim.py."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from dlio.io import files
from dlio.io.open_folder import Below, OpenFolder
from dlio.locking.owner import Owner

BEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    """One numbered claim file as read.

    Attributes:
        number: counts up; the highest is in force.
        owner: who made it.
        token: a name of its own, for the owner's unfinished files.
        state: "held", "released" (another may go on), or why the owner failed.
        errno: the system's number of that failure, if it has one.
    """

    number: int
    owner: Owner
    token: str
    state: str = "held"
    errno: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the owner surely does nothing any more."""
        return self.state != "held" or self.owner.is_alive() is False


def latest(folder: Below) -> Claim | None:
    """Returns the claim in force, or None where nobody has made one.

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
    """Returns the claim in force, or None where nobody has made one, or it was removed meanwhile.

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


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def _parse(number: int, text: bytes) -> Claim:
    try:
        record = json.loads(text)
        return Claim(number, Owner.from_json(record["owner"]), _token(record), str(record["state"]), _errno(record))
    except (ValueError, KeyError, TypeError, RecursionError):  # cut off by a crash, since when nobody lives
        return Claim(number, Owner("", "", 0, 0), "unknown", "released")


def _token(record: Any) -> str:
    token = record["token"]
    if not isinstance(token, str) or not token.isalnum():
        raise ValueError("a token names a folder, and has letters and digits only")
    return token


def _errno(record: Any) -> int | None:
    number = record.get("errno")
    return number if type(number) is int else None


def make(folder: Below, number: int) -> Claim | None:
    """Returns this process's claim with that number, or None where another process made it first.

    Raises:
        StorageError: the folder cannot be written.
    """
    claim = Claim(number, Owner.current(), os.urandom(8).hex())
    with files.storage_errors("claim", folder.path), folder.make() as opened:
        try:
            opened.write_new(f".{claim.token}", _text(claim))
            opened.link(f".{claim.token}", str(number))
        except (FileExistsError, FileNotFoundError):  # made by another, or removed with the whole folder
            return None
        finally:
            with suppress(FileNotFoundError):
                opened.unlink(f".{claim.token}")
    return claim


def _text(claim: Claim) -> bytes:
    record = {"owner": asdict(claim.owner), "token": claim.token, "state": claim.state, "errno": claim.errno}
    return json.dumps(record).encode()


def rewrite(folder: Below, claim: Claim) -> None:
    """Says in the claim how it ended; where even that fails, the owner's death says it."""
    with suppress(OSError), folder.open() as opened:
        opened.write_new(f".{claim.token}", _text(claim))
        opened.rename(f".{claim.token}", str(claim.number))


def remove(folder: Below) -> None:
    """Removes the claims on work that is done.

    Raises:
        StorageError: the folder cannot be read, or a claim not be removed.
    """
    with files.storage_errors("remove the claims in", folder.path), folder.open() as opened:
        for name in opened.names():
            if not opened.has_folder(name):
                with suppress(FileNotFoundError):
                    opened.unlink(name)


def remove_in(folder: OpenFolder, up_to: int) -> None:
    """Removes the claims of the folder's owner, those with higher numbers excepted.

    Raises:
        OSError: the folder cannot be read, or a claim not be removed.
    """
    for name in folder.names():
        status = folder.look(name)
        is_ours = status is not None and status.st_uid == folder.owner and not folder.has_folder(name)
        if is_ours and (name.startswith(".") or (_is_number(name) and int(name) <= up_to)):
            with suppress(FileNotFoundError):
                folder.unlink(name)


@contextmanager
def heart(folder: Below, number: int) -> Iterator[None]:
    """Renews the modification time of a claim."""
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(folder, number, stop), name="dlio-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _beat(folder: Below, number: int, stop: threading.Event) -> None:
    with suppress(OSError), folder.open() as opened:  # a file system that fails: the work itself will say so
        while not stop.wait(BEAT_SECONDS):
            opened.touch(str(number))


def modified(folder: Below, number: int) -> float:
    """Returns when a claim was renewed, in seconds since 1970; 0 where it is gone."""
    try:
        with folder.open() as opened:
            status = opened.look(str(number))
            return status.st_mtime if status else 0.0
    except FileNotFoundError:
        return 0.0
