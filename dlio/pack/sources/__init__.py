"""Sources of samples for `dlio.pack`: one module for each kind of input, and `open_source`, which recognises the kind.

A source lists its samples once, in one process, and reads them one by one in the workers. To add one, add a module to
this folder, or give the dotted path of a module of another package as the source's name. The module holds

    open_source(path, **options)    returns a `Source`; this is also the function for scripts, `dlio.sources.NAME`
                                    (or by its own name, if `open_source` is an alias)
    recognises(path)                optional; whether `path` looks like this kind of input
    IS_GENERAL = True               optional; `auto` asks this source after the others

A `_` in the module's name is `-` on the command line. A module of another package is used only if the user names it.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from dlio.errors import UsageError
from dlio.io import extensions
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Source

if TYPE_CHECKING:  # type checkers need the functions by name; when dlio runs, the loop at the end finds them
    from dlio.pack.sources.archive import archive as archive
    from dlio.pack.sources.caffe_list import caffe_list as caffe_list
    from dlio.pack.sources.chestxray14 import chestxray14 as chestxray14
    from dlio.pack.sources.cifar10 import cifar10 as cifar10
    from dlio.pack.sources.csv import csv_file as csv_file
    from dlio.pack.sources.frames import frames as frames
    from dlio.pack.sources.imagefolder import image_folder as image_folder
    from dlio.pack.sources.images import images as images
    from dlio.pack.sources.lst import lst_file as lst_file
    from dlio.pack.sources.packed import packed as packed


class SourceModule(Protocol):
    """The contents of a source's module."""

    def open_source(self, path: Path, **options: object) -> Source:
        """Returns the source at `path`; the option `root` is a folder that paths start from, other options are text."""


@runtime_checkable
class RecognisingModule(Protocol):
    """The optional contents of a source's module."""

    def recognises(self, path: Path) -> bool:
        """Returns whether `path` looks like this kind of input; reads at most a few lines or names."""


def names() -> list[str]:
    """Returns the names of dlio's own sources, sorted."""
    return [name.replace("_", "-") for name in extensions.names(__path__)]


def load(name: str) -> SourceModule:
    """Returns the module of a source, which is one of dlio's or has a dotted path.

    Raises:
        UsageError: there is no such source.
    """
    return cast(SourceModule, extensions.load(name, "a source", __name__, names(), ["open_source"]))


def open_source(path: str | Path, *, name: str = "auto", root: str | Path | None = None, **options: str) -> Source:
    """Returns the source at `path`.

    Args:
        path: a folder or a file.
        name: the kind of source, or the dotted path of its module; `auto` recognises dlio's own kinds.
        root: the folder that the paths in a list, or in an archive, start from.
        **options: the keywords of the source's function, as text.

    Raises:
        StorageError: `path` cannot be read.
        UsageError: the source is unknown, it does not take the option or root, or `path` is not recognised.
    """
    path = Path(path)
    if name != "auto":
        load(name)
    with storage_errors("read", path):
        if not path.exists():
            raise UsageError(f"{path} does not exist: give a folder of class folders, or a list of files")
        kind = _recognise(path) if name == "auto" else name
    module = load(kind)
    taken = list(inspect.signature(module.open_source).parameters)[1:]
    if root is not None and "root" not in taken:
        raise UsageError(f"the source {kind} reads {path} itself, given the root {root} too: leave --root out")
    for option in options:
        if option not in taken:
            own = ", ".join(name for name in taken if name != "root")
            raise UsageError(f"the source {kind} has no option {option!r}, only {own or 'none'}")
    return module.open_source(path, **options, **({"root": Path(root)} if root is not None else {}))


def _recognise(path: Path) -> str:
    """Returns the name of the source that recognises `path`; general sources are asked last."""
    modules = {name: load(name) for name in names()}
    for name in sorted(modules, key=lambda name: getattr(modules[name], "IS_GENERAL", False)):
        module = modules[name]
        if isinstance(module, RecognisingModule) and module.recognises(path):
            return name
    raise UsageError(f"{path} is not recognised: give its kind by --source, one of {', '.join(names())}")


def _bind_functions() -> list[str]:
    """Gives this package the function of each source, in the place of a module of the same name; returns the names."""
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in extensions.names(__path__)}
    functions = {}
    for name, module in modules.items():
        own = module.open_source.__name__
        functions[name if own == "open_source" else own] = module.open_source
    globals().update(functions)
    return list(functions)


__all__ = ["names", "open_source", *_bind_functions()]
