"""What a machine can do: described in a machine file, or measured here by `dlio bench`.

A machine file describes a cluster in TOML; those of public systems are included:

    # what it is, and where the figures come from
    source = 1.5e12     # bytes per second from the shared file system to all nodes
    client = 2.0e9      # ... to one node

The keys are the attributes of `dlio.stage.planning.cost.Machine`, except for the number of nodes, which is the job's,
and `rates`, which names the file. Figures that a file leaves out are those of a typical cluster.

`dlio bench` keeps the rates of storage in a file of this user. The keys are file systems, the values bytes per second
of one node. DLIO_RATES names another file.

    ~/.cache/dlio/rates.json    {"read": {"lustre at /lustre": 1.9e9}, "write": {"xfs at /scratch": 2.1e9}}
"""

from __future__ import annotations

import errno
import json
import logging
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import Manifest
from dlio.errors import DlioError, StorageError, UsageError
from dlio.io import files
from dlio.io.filesystems import filesystem_of, local_folders
from dlio.stage.planning.cost import Machine

FOLDER = Path(__file__).parent / "machines"
VARIABLE = "DLIO_RATES"
_MOST_BYTES = 1 << 20
_RATES = ("source", "client", "network", "local")
_TYPES: dict[str, type] = {each.name: type(getattr(Machine(1, 0), each.name)) for each in fields(Machine)}
_EXPECTED = {bool: "a truth value", int: "a whole number", float: "a number"}
_KNOWN = {name: kind for name, kind in _TYPES.items() if name not in ("num_nodes", "rates")}
_log = logging.getLogger(__name__)


def known(machine: Machine, name: str, manifest: Manifest, dest: Path | None) -> Machine:
    """Returns a machine with the figures of the machine file `name`, or if that is "" as `applied`; raises so."""
    return described(name, machine) if name else applied(machine, manifest, dest)


def names() -> list[str]:
    """Returns the names of the included machines, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def described(name: str, machine: Machine) -> Machine:
    """Returns a machine with the figures of a file.

    Args:
        name: one of `names`, or the path of a file.
        machine: the number of nodes, and all that the file leaves out.

    Raises:
        UsageError: no such machine or file exists, or it holds something else.
        StorageError: it cannot be read.
    """
    import tomllib  # only for those who name a machine
    from difflib import get_close_matches

    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    try:
        found = tomllib.loads(files.read_regular(path, _MOST_BYTES)[:_MOST_BYTES].decode())
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        close = get_close_matches(name, names(), 1)
        meant = f": did you mean {close[0]}?" if close else ""
        known = ", ".join(names())
        raise UsageError(f"{name!r} is not a machine: expected the path of a file, or {known}{meant}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a machine file: {error}") from error
    absent = [key for key in _RATES if key not in found]
    rates = f"{name}, which gives no {' or '.join(absent)}" if absent else name
    try:
        return replace(machine, **{key: _figure(key, value) for key, value in found.items()}, rates=rates)
    except UsageError as error:
        raise UsageError(f"{path} describes {error}") from error


def _figure(key: str, value: Any) -> Any:
    kind = _KNOWN.get(key)
    if kind is None:
        raise UsageError(f"{key!r}, which is not known: expected {', '.join(_KNOWN)}")
    is_number = isinstance(value, bool | int | float) and isinstance(value, bool) == (kind is bool)
    if not is_number or (kind is int and value % 1 != 0):  # as of nan and infinity
        raise UsageError(f"{key} as {value!r}: expected {_EXPECTED[kind]}")
    try:
        return kind(value)
    except OverflowError as error:
        raise UsageError(f"{key} as {value!r}: {error}") from error


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


def rates_path() -> Path:
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


def measured() -> Rates:
    """Returns the measured rates; none without a readable file."""
    try:
        file = rates_path()
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


def add_rates(more: Rates) -> Path:
    """Adds rates to the file, and returns its path.

    Raises:
        StorageError: it cannot be written.
        UsageError: this user has no home, and no file is named.
    """
    before, target = measured(), rates_path()
    whole = Rates(before.read | more.read, before.write | more.write)
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
    rates = measured()
    if rates == Rates():
        return machine
    found: dict[str, float] = {}
    client = rates.read.get(str(filesystem_of(manifest.root))) if manifest.root.is_dir() else None
    if client is not None:
        found |= {"client": client, "source": max(client, machine.source)}
    folders = [dest] if dest is not None else [folder for _, folder in local_folders()]
    written = [rates.write[name] for name in map(str, map(filesystem_of, folders)) if name in rates.write]
    found |= {"local": written[0]} if written else {}
    return replace(machine, **found, rates=str(rates_path())) if found else machine  # type: ignore[arg-type]
