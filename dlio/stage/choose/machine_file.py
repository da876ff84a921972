"""Machine files: a cluster described in TOML, and those of public systems that are included.

    # what it is, and where the figures come from
    source = 1.5e12     # bytes per second from the shared file system to all nodes
    client = 2.0e9      # ... to one node

The keys are the attributes of `dlio.stage.planning.cost.Machine`, except for the number of nodes, which is the job's,
and `rates`, which names the file. Figures that a file leaves out are those of a typical cluster.
"""

from __future__ import annotations

import errno
import tomllib
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dlio.errors import StorageError, UsageError
from dlio.io import files
from dlio.stage.planning.cost import Machine

FOLDER = Path(__file__).parent / "machines"
_MOST_BYTES = 1 << 20
_RATES = ("source", "client", "network", "local")
_TYPES: dict[str, type] = {each.name: type(getattr(Machine(1, 0), each.name)) for each in fields(Machine)}
_EXPECTED = {bool: "a truth value", int: "a whole number", float: "a number"}
_KNOWN = {name: kind for name, kind in _TYPES.items() if name not in ("num_nodes", "rates")}


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
