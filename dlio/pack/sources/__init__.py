"""Sources of samples: one module for each kind of input, found by name.

A source lists its samples once, on one process, and reads them one by one, in the workers. To add one, add a module to
this folder with `open_source(path, **options)`, a class that fulfils `Source`, and `recognises(path)` if `auto` is to
find it; a `_` in the module's name is `-` on the command line. What the sources that dlio brings look like is in
`_looks.py` instead, so that none of them is loaded in vain, and their functions for scripts are in `dlio/sources.py`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from dlio.errors import UsageError
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Source
from dlio.pack.sources._looks import LOOKS


class SourceModule(Protocol):
    """What the module of a source holds."""

    def open_source(self, path: Path, **options: Any) -> Source:
        """Returns the source at `path`; the option `root` is a folder that paths start from, all others are text."""


@runtime_checkable
class RecognisingModule(Protocol):
    """What the module of a source holds that is not in `LOOKS` and is found all the same."""

    def recognises(self, path: Path) -> bool:
        """Tells whether `path` looks like this kind of input; reads no more than a few lines or names."""


def names() -> list[str]:
    """Returns the names of the sources, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def _load(name: str) -> SourceModule:
    return cast(SourceModule, importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))


def open_source(path: str | Path, *, name: str = "auto", root: str | Path | None = None, **options: str) -> Source:
    """Returns the source at `path`; `auto` recognises its kind, the most particular one first.

    Args:
        path: a folder or a file.
        name: the kind of source.
        root: the folder that the paths in a list, or in an archive, start from.
        **options: the keywords of the source's function, as text.

    Raises:
        StorageError: `path` cannot be looked at.
        UsageError: there is no source of this name, it takes no such option or no root, or `path` is not recognised.
    """
    path = Path(path)
    if name != "auto" and name not in names():
        raise UsageError(f"{name!r} is no source: expected auto or one of {', '.join(names())}")
    with storage_errors("read", path):
        if not path.exists():
            raise UsageError(f"{path} does not exist: give a folder of class folders, or a list of files")
        kind = _kind(path) if name == "auto" else name
    if root is not None and "root" not in _options(kind):
        raise UsageError(f"the source {kind} reads {path} itself, given the root {root} too: leave --root out")
    for option in options:
        if option not in _options(kind):
            own = ", ".join(name for name in _options(kind) if name != "root")
            raise UsageError(f"the source {kind} has no option {option!r}, only {own or 'none'}")
    return _load(kind).open_source(path, **options, **({"root": Path(root)} if root is not None else {}))


def _kind(path: Path) -> str:
    """Returns the kind of input that `path` looks like; where several fit, one that dlio does not bring."""
    for name in [name for name in names() if name not in LOOKS]:
        module = _load(name)
        if isinstance(module, RecognisingModule) and module.recognises(path):
            return name
    for name, fits in LOOKS.items():
        if fits(path):
            return name
    raise UsageError(f"{path} is not recognised: give its kind by --source, one of {', '.join(names())}")


def _options(kind: str) -> list[str]:
    return list(inspect.signature(_load(kind).open_source).parameters)[1:]
