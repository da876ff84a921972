"""Sources of samples: one module for each kind of input, found by name.

A source lists its samples once, on one process, and reads them one by one, in the workers. To add one, add a module to
this folder with `recognises(path)`, `open_source(path, **options)` and a class that fulfils `Source`; `_` in the
module's name is `-` on the command line. Where its options are text or numbers anyway, the public function is the
module's `open_source` as well.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any, Protocol, cast

from dlio.errors import UsageError
from dlio.pack.listing import Source
from dlio.pack.sources.archive import archive
from dlio.pack.sources.caffe_list import caffe_list
from dlio.pack.sources.chestxray14 import chestxray14
from dlio.pack.sources.cifar10 import cifar10
from dlio.pack.sources.csv import csv_file
from dlio.pack.sources.frames import frames
from dlio.pack.sources.imagefolder import image_folder
from dlio.pack.sources.lst import lst_file
from dlio.pack.sources.packed import packed

__all__ = [
    "archive",
    "caffe_list",
    "chestxray14",
    "cifar10",
    "csv_file",
    "frames",
    "image_folder",
    "lst_file",
    "names",
    "open_source",
    "packed",
]


class SourceModule(Protocol):
    """What the module of a source holds."""

    def recognises(self, path: Path) -> bool:
        """Tells whether `path` looks like this kind of input; reads no more than a few lines or names."""

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
    kinds = [kind for kind in names() if _load(kind).recognises(path)] if name == "auto" else [name]
    if not kinds:
        raise UsageError(f"{path} is not recognised: give its kind by --source, one of {', '.join(names())}")
    kind = _most_particular(kinds)
    if root is not None and "root" not in _options(kind):
        raise UsageError(f"the source {kind} reads {path} itself, given the root {root} too: leave --root out")
    for option in options:
        if option not in _options(kind):
            own = ", ".join(name for name in _options(kind) if name != "root")
            raise UsageError(f"the source {kind} has no option {option!r}, only {own or 'none'}")
    return _load(kind).open_source(path, **options, **({"root": Path(root)} if root is not None else {}))


def _most_particular(kinds: list[str]) -> str:
    """Returns the kind to take where several fit: any other than folders and tables of any content."""
    return next((kind for kind in kinds if kind not in ("imagefolder", "csv", "caffe-list")), kinds[0])


def _options(kind: str) -> list[str]:
    return list(inspect.signature(_load(kind).open_source).parameters)[1:]
