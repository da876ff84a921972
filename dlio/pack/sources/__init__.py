"""Sources of samples for `dlio.pack`: one module for each kind of input, and `open_source`, which recognises the kind.

A source lists its samples once, in one process, and reads them one by one in the workers. To add a source, add a module
to this folder, or give the dotted path of a module of another package as the source's name. The module holds

    open_source(path, **options)    returns a `Source`; this is also the function for scripts, `dlio.sources.NAME`
                                    (or by its own name, if `open_source` is an alias)
    recognises(path)                optional; whether `path` looks like this kind of input
    IS_GENERAL = True               optional; `auto` asks this source after the others

A `_` in the module's name is `-` on the command line. A module of another package is used only if the user names it.
The name of a format that `dlio index` knows is that of the source `shards` with this format, unless it is a source's.
"""

from __future__ import annotations

import inspect
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, cast, runtime_checkable

from dlio.dataset.location import names_url
from dlio.errors import UsageError
from dlio.io import extensions
from dlio.io.files import storage_errors
from dlio.pack.listing.base import Source
from dlio.urls import is_url, shown

_LISTS = {".csv": "csv", ".tsv": "csv", ".lst": "lst", ".txt": "caffe-list"}  # what is read at URLs, by its suffix
_OBJECTS = str(Path(__file__).parent / "objects")
_OF_URLS = ("imagefolder", "packed", *_LISTS.values())


class SourceModule(Protocol):
    """The contents of a source's module."""

    def open_source(self, path: Any, **options: object) -> Source:
        """Returns the source at `path`; the option `root` is a folder that paths start from, other options are text."""


@runtime_checkable
class RecognisingModule(Protocol):
    """The optional contents of a source's module."""

    def recognises(self, path: Path) -> bool:
        """Returns whether `path` looks like this kind of input; reads at most a few lines or names."""


def names() -> list[str]:
    """Returns the names of dlio's own sources, sorted."""
    return [name.replace("_", "-") for name in extensions.names([*__path__, _OBJECTS])]


def format_names() -> list[str]:
    """Returns the names of formats whose shards the source `shards` reads, and which are no sources, sorted."""
    return sorted({*extensions.names([str(Path(__file__).parents[1] / "index")])} - {*names()})


def load(name: str) -> SourceModule:
    """Returns the module of a source, of dlio or of a dotted path; raises UsageError if there is none."""
    package = f"{__name__}.objects" if name in extensions.names([_OBJECTS]) else __name__
    return cast(SourceModule, extensions.load(name, "a source", package, names(), ["open_source"]))


def open_source(path: str | Path, *, name: str = "auto", root: str | Path | None = None, **options: str) -> Source:
    """Returns the source at `path`.

    Args:
        path: a folder or a file, or the URL of class folders, of a list, or of a packed data set.
        name: the kind of source, a format of shards, or the dotted path of a source's module; `auto` recognises dlio's
            own kinds.
        root: the folder that the paths in a list, or in an archive, start from; of a list also a URL.
        **options: the keywords of the source's function, as text.

    Raises:
        StorageError: `path` cannot be read.
        UsageError: the source is unknown, it does not take the option or root, or `path` is not recognised.
    """
    if name in format_names():
        name, options = "shards", {"format": name, **options}
    if name != "auto":
        load(name)
    if names_url(path):
        kind = _LISTS.get(PurePosixPath(str(path)).suffix.lower(), "imagefolder")
        return _open(kind if name == "auto" else name, str(path), root, options)
    path = Path(path)
    with storage_errors("read", path):
        if not path.exists():
            raise UsageError(f"{path} does not exist: give a folder of class folders, or a list of files")
        kind = _recognise(path) if name == "auto" else name
    return _open(kind, path, root, options)


def _open(kind: str, path: str | Path, root: str | Path | None, options: dict[str, str]) -> Source:
    if isinstance(path, str) and kind not in _OF_URLS:
        known = ", ".join(dict.fromkeys(_OF_URLS))
        raise UsageError(
            f"the source {kind} cannot read a URL such as {shown(path)}: give a path, or use one of {known}"
        )
    module = load(kind)
    taken = list(inspect.signature(module.open_source).parameters)[1:]
    if root is not None and "root" not in taken:
        raise UsageError(
            f"the source {kind} reads {shown(str(path))} itself, given the root {shown(str(root))} too: "
            "leave --root out"
        )
    if root is not None and is_url(root) and kind not in _LISTS.values():
        raise UsageError(f"the source {kind} accepts no root at a URL such as {shown(str(root))}: give a folder")
    for option in options:
        if option not in taken:
            own = ", ".join(name for name in taken if name != "root")
            raise UsageError(f"the source {kind} has no option {option!r}, only {own or 'none'}")
    given = {} if root is None else {"root": root if is_url(root) else Path(root)}
    return module.open_source(path, **options, **given)


def _recognise(path: Path) -> str:
    """Returns the name of the source that recognises `path`: a manifest says it at once, general sources come last."""
    modules = {name: load(name) for name in names()}
    for name in sorted(modules, key=lambda name: (getattr(modules[name], "IS_GENERAL", False), name != "packed")):
        module = modules[name]
        if isinstance(module, RecognisingModule) and module.recognises(path):
            return name
    problem = "is empty" if path.is_dir() and not any(path.iterdir()) else "is not recognised"
    raise UsageError(
        f"{path} {problem}: give a folder of class folders, or the kind with --source: {', '.join(names())}"
    )
