"""Claim files: numbered, made by link(2), renewed by a heart; what they mean is said in claim.py."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dlio import files
from dlio.errors import StorageError
from dlio.owner import Owner

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


def latest(folder: Path) -> Claim | None:
    """Returns the claim in force, or None where nobody has made one.

    Raises:
        StorageError: the folder cannot be read.
    """
    try:
        numbers = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
        return _parse(max(numbers), (folder / str(max(numbers))).read_text()) if numbers else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(error.errno, f"cannot read the claims in {folder}: {error.strerror}") from error


def _parse(number: int, text: str) -> Claim:
    try:
        record = json.loads(text)
        owner, token, state = Owner(**record["owner"]), str(record["token"]), str(record["state"])
        return Claim(number, owner, token, state, record.get("errno"))
    except (ValueError, KeyError, TypeError):  # cut off by a crash of the machine, since when nobody lives
        return Claim(number, Owner("", "", 0, 0), "unknown", "released")


def make(folder: Path, number: int) -> Claim | None:
    """Returns this process's claim with that number, or None where another process made it first.

    Raises:
        StorageError: the folder cannot be written.
    """
    claim = Claim(number, Owner.current(), os.urandom(8).hex())
    aside = folder / f".{claim.token}"
    with files.storage_errors("claim", folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            aside.write_text(_text(claim))
            os.link(aside, folder / str(number))
        except (FileExistsError, FileNotFoundError):  # made by another, or removed with the whole folder
            return None
        finally:
            aside.unlink(missing_ok=True)
    return claim


def _text(claim: Claim) -> str:
    record = {"owner": asdict(claim.owner), "token": claim.token, "state": claim.state, "errno": claim.errno}
    return json.dumps(record)


def rewrite(path: Path, claim: Claim) -> None:
    """Says in the claim how it ended; where even that fails, the owner's death says it."""
    aside = path.with_name(f".{claim.token}")
    try:
        aside.write_text(_text(claim))
        aside.replace(path)
    except OSError:
        return


def remove(folder: Path, up_to: int | None = None) -> None:
    """Removes the claims on work that is done, those with higher numbers excepted."""
    for path in folder.iterdir():
        later = up_to is not None and path.name.isdecimal() and int(path.name) > up_to
        if not later and not path.is_dir():
            path.unlink(missing_ok=True)


@contextmanager
def heart(path: Path) -> Iterator[None]:
    """Renews the modification time of a claim."""
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, stop), name="dlio-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        try:
            os.utime(path)
        except OSError:
            return  # the file system is failing; the work itself will say so


def modified(path: Path) -> float:
    """Returns when a claim was renewed, in seconds since 1970; 0 where it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
