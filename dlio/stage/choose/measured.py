"""The rates of storage that `dlio bench` has measured here, in a file of this user.

    ~/.cache/dlio/rates.json    {"read": {"lustre at /lustre": 1.9e9}, "write": {"xfs at /scratch": 2.1e9}}

The keys are file systems, the values bytes per second of one node. DLIO_RATES names another file.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dlio.dataset.manifest import Manifest
from dlio.errors import DlioError, UsageError
from dlio.io import files
from dlio.io.filesystems import filesystem_of, local_folders
from dlio.stage.planning.cost import Machine

VARIABLE = "DLIO_RATES"
_MOST_BYTES = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rates:
    """What one node reads from file systems and writes to them, in bytes per second."""

    read: dict[str, float] = field(default_factory=dict)
    write: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError if a rate is not a number above 0."""
        for rate in (*self.read.values(), *self.write.values()):
            if not (isinstance(rate, float | int) and 0 < rate < float("inf")):
                raise ValueError(f"{rate!r} is not a rate")


def path() -> Path:
    """Returns the file of the rates.

    Raises:
        UsageError: neither DLIO_RATES nor XDG_CACHE_HOME is set, and this user has no home.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise UsageError(f"this user has no home: name a file for the rates in {VARIABLE}") from error
    return (Path(cache) / "dlio" / "rates.json").absolute()


def load() -> Rates:
    """Returns the measured rates; none without a readable file."""
    try:
        file = path()
    except UsageError:  # so there are none
        return Rates()
    try:
        return Rates(**json.loads(files.read_regular(file, _MOST_BYTES)))
    except FileNotFoundError:
        return Rates()
    except (DlioError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        if getattr(error, "errno", None) is None:
            _log.warning("%s is not a file of rates, and is ignored: run dlio bench again: %s", file, error)
        return Rates()


def add_rates(measured: Rates) -> Path:
    """Adds rates to the file, and returns its path.

    Raises:
        StorageError: it cannot be written.
        UsageError: this user has no home, and no file is named.
    """
    before, target = load(), path()
    whole = Rates(before.read | measured.read, before.write | measured.write)
    with files.storage_errors("create", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    files.publish_bytes(target, json.dumps(asdict(whole), indent=2).encode() + b"\n")
    return target


def applied(machine: Machine, manifest: Manifest, dest: Path | None) -> Machine:
    """Returns the machine with the rates measured of the data set's file system and of DEST's.

    The rate of all nodes together is not measured: it is taken to be at least that of one node.

    Args:
        machine: with the cost model's rates.
        manifest: a data set; at a URL nothing is known of its source.
        dest: the folder to stage to; None for the first of this node's local folders whose rate is known.
    """
    rates = load()
    if rates == Rates():
        return machine
    found: dict[str, float] = {}
    client = rates.read.get(str(filesystem_of(manifest.root))) if manifest.root.is_dir() else None
    if client is not None:
        found |= {"client": client, "source": max(client, machine.source)}
    folders = [dest] if dest is not None else [folder for _, folder in local_folders()]
    written = [rates.write[name] for name in map(str, map(filesystem_of, folders)) if name in rates.write]
    found |= {"local": written[0]} if written else {}
    return replace(machine, **found, rates=str(path())) if found else machine  # type: ignore[arg-type]
