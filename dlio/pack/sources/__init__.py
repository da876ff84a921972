"""Sources of samples: one module for each kind of input, found by name.

A source lists its samples once, on one process, and reads them one by one, in the workers. To add one, add a module to
this folder with `recognises(path)`, `open_source(path, root)` and a class that fulfils `Source`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol, cast

from dlio.errors import UsageError
from dlio.pack.listing import Source
from dlio.pack.sources.csv import csv_file
from dlio.pack.sources.imagefolder import image_folder
from dlio.pack.sources.lst import lst_file

__all__ = ["csv_file", "image_folder", "lst_file", "names", "open_source"]


class SourceModule(Protocol):
    """What the module of a source holds."""

    def recognises(self, path: Path) -> bool:
        """Tells whether `path` looks like this kind of input; reads no more than a few lines or names."""

    def open_source(self, path: Path, root: Path | None) -> Source:
        """Returns the source at `path`; `root` is the folder that a list's paths start from."""


def names() -> list[str]:
    """Returns the names of the sources, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)


def _load(name: str) -> SourceModule:
    return cast(SourceModule, importlib.import_module(f"{__name__}.{name}"))


def open_source(path: str | Path, *, name: str = "auto", root: str | Path | None = None) -> Source:
    """Returns the source at `path`; `auto` recognises its kind.

    Raises:
        UsageError: there is no source of this name, or `path` is not recognised or does not exist.
    """
    path = Path(path)
    if name != "auto" and name not in names():
        raise UsageError(f"{name!r} is no source: expected auto or one of {', '.join(names())}")
    if not path.exists():
        raise UsageError(f"{path} does not exist: give a folder of class folders, or a list of files")
    kinds = [kind for kind in names() if _load(kind).recognises(path)] if name == "auto" else [name]
    if not kinds:
        raise UsageError(f"{path} is not recognised: give its kind by --source, one of {', '.join(names())}")
    return _load(kinds[0]).open_source(path, Path(root) if root is not None else None)
