"""Modules found by name: one for each kind of source, engine or shard layout, in dlio or in another package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from types import ModuleType

from dlio.errors import UsageError


def names(folders: Iterable[str]) -> list[str]:
    """Returns the names of the modules in these folders, sorted, without packages and private modules."""
    return list(_listed(tuple(folders)))


@cache  # opening a shard asks for its format's name
def _listed(folders: tuple[str, ...]) -> list[str]:
    modules = pkgutil.iter_modules(folders)
    return sorted(module.name for module in modules if not module.ispkg and not module.name.startswith("_"))


def load(name: str, kind: str, package: str, known: Sequence[str], members: Sequence[str]) -> ModuleType:
    """Returns a module of `package`, or the module of another package that the user names.

    Args:
        name: one of `known`, or the dotted path of a module, which is imported.
        kind: what the module is, with its article; for messages.
        package: the dotted path of dlio's own package for this kind.
        known: the names of the modules in `package`; `-` stands for `_`.
        members: the names that the module of another package must have.

    Raises:
        UsageError: the name is unknown, or the module cannot be imported or lacks a member.
    """
    if "." not in str(name):
        if name not in known:
            close = get_close_matches(str(name), known, 1)
            meant = f": did you mean {close[0]}?" if close else ""
            raise UsageError(f"{name!r} is not {kind}: expected {', '.join(known)}, or a module's dotted path{meant}")
        return importlib.import_module(f"{package}.{name.replace('-', '_')}")
    try:
        module = importlib.import_module(name)
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(f"the module {name!r} cannot be imported: {error}") from error
    if missing := [member for member in members if not hasattr(module, member)]:
        raise UsageError(f"the module {name!r} is not {kind}: it lacks {', '.join(missing)}")
    return module
