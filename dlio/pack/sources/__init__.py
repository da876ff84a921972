"""Sources of samples: one module for each kind of input, found by name.

A source lists its samples once, on one process, and reads them one by one, in the workers. To add one, add a module to
this folder with `open_source(path, **options)` and a class that fulfils `Source`, what the input looks like to
`_looks.py`, and a function for scripts to `dlio/sources.py`; where its options are text or numbers anyway, that is the
module's `open_source`. A `_` in the module's name is `-` on the command line.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any, Protocol, cast

from dlio.errors import UsageError
from dlio.pack.listing import Source
from dlio.pack.sources._looks import LOOKS


class SourceModule(Protocol):
    """What the module of a source holds."""

    def open_source(self, path: Path, **options: Any) -> Source:
        """Returns the source at `path`; the option `root` is a folder that paths start from, all others are text."""


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
        UsageError: there is no source of this name, it takes no such option or no root, or `path` is not recognised.
    """
    path = Path(path)
    if name != "auto" and name not in names():
        raise UsageError(f"{name!r} is no source: expected auto or one of {', '.join(names())}")
    if not path.exists():
        raise UsageError(f"{path} does not exist: give a folder of class folders, or a list of files")
    kind = next((kind for kind, fits in LOOKS.items() if fits(path)), None) if name == "auto" else name
    if kind is None:
        raise UsageError(f"{path} is not recognised: give its kind by --source, one of {', '.join(names())}")
    if root is not None and "root" not in _options(kind):
        raise UsageError(f"the source {kind} reads {path} itself, given the root {root} too: leave --root out")
    for option in options:
        if option not in _options(kind):
            own = ", ".join(name for name in _options(kind) if name != "root")
            raise UsageError(f"the source {kind} has no option {option!r}, only {own or 'none'}")
    return _load(kind).open_source(path, **options, **({"root": Path(root)} if root is not None else {}))


def _options(kind: str) -> list[str]:
    return list(inspect.signature(_load(kind).open_source).parameters)[1:]
