"""The site's reference pages that are made from the code: exit codes, environment, formats, sources, Python."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path

import dlio
from dlio import errors, formats
from dlio.cluster.launchers import LAUNCHERS
from dlio.environment import VARIABLES
from dlio.io.filesystems import _LOCAL_VARIABLES
from dlio.pack import sources
from dlio.stage.copies.lease import _JOB_VARIABLES
from tools.site.command_line import command_line
from tools.site.tables import names_in_code, table

ROOT = Path(__file__).parents[2]

#: Modules whose public names make a page of the Python reference, by the page's name.
MODULES = {
    "torch": ["dlio.loaders.torch"],
    "tensorflow": ["dlio.loaders.tensorflow", "dlio.loaders.keras"],
    "jax": ["dlio.loaders.jax", "dlio.loaders.loader", "dlio.loaders.options", "dlio.loaders.dataset"],
    "benchmark": ["dlio.loaders.dlio_benchmark"],
    "images": ["dlio.images", "dlio.targets", "dlio.random_keys", "dlio.pack.recode"],
    "staging": [
        "dlio.stage", "dlio.stage.choose.machine_file", "dlio.stage.planning.cost", "dlio.stage.planning.simulation",
    ],
    "protocols": [
        "dlio.formats", "dlio.pack.listing.base", "dlio.pack.index._layout", "dlio.executors", "dlio.stage.strategies",
    ],
    "hub": ["dlio.look.hub", "dlio.look.filesystem"],
    "testing": [
        "dlio.testing.formats", "dlio.testing.sources", "dlio.testing.engines", "dlio.testing.engine_runner",
        "dlio.testing.strategies",
    ],
}  # fmt: skip

LAYOUTS = {"lmdb": "Pages of LMDB", "tar": "Tar"}
PAYLOADS = {
    "example": "tf.train.Example",
    "irheader": "MXNet's image record",
    "datum": "Caffe's Datum",
    "members": "Files of a WebDataset tar",
}


def reference_pages() -> dict[str, str]:
    """Returns the Markdown of each generated page, by its path in the site."""
    python = {"dlio": _verbs_page(), "sources": _sources_page(), "errors": _errors_page()}
    python |= {name: _modules_page(modules) for name, modules in MODULES.items()}
    return {
        "reference/command-line.md": command_line(),
        "reference/exit-codes.md": exit_codes(),
        "reference/environment.md": environment(),
        "reference/formats.md": formats_page(),
        "reference/sources.md": sources_page(),
    } | {f"reference/python/{name}.md": text for name, text in python.items()}


def exit_codes() -> str:
    """Returns the page of exit codes and of the errors behind them, from `dlio.errors`."""
    rows = [
        (errors.EXIT_DONE, "", "done"),
        (errors.EXIT_SKIPPED, "", "done, but some samples were skipped, or are damaged; they are listed"),
        *(
            (kind.exit_code, f"`{kind.__name__}`", _sentence(kind))
            for kind in _errors()
            if kind is not errors.DlioError
        ),
        (errors.EXIT_INTERRUPTED, "`KeyboardInterrupt`", "interrupted by Ctrl-C; the same command goes on from there"),
    ]
    shown = table(("exit code", "error in Python", "meaning"), [tuple(map(str, row)) for row in sorted(rows)])
    return (
        f"# Exit codes and errors\n\n{shown}\n\n[Trouble, by message](../trouble.md) says what to do. "
        "The errors' attributes: [dlio.errors](python/errors.md).\n"
    )


def environment() -> str:
    """Returns the page of the environment variables that dlio reads."""
    own = table(("variable", "meaning"), [(f"`{name}`", text) for name, text in VARIABLES.items()])
    ranks = [(f"`{kind.name}`", names_in_code(name for name in kind.names() if " " not in name)) for kind in LAUNCHERS]
    return (
        f"# Environment variables\n\n## Of dlio\n\n{own}\n\n## Of the scheduler\n\n"
        f"`stage` puts its copy into the first of these that names a folder: {names_in_code(_LOCAL_VARIABLES)}. "
        f"After them come `/tmp` and `/dev/shm`.\n\nA job is known by the first of these: "
        f"{names_in_code(_JOB_VARIABLES)}.\n\n"
        "## Of the launcher\n\nRank, world size and node are read from the variables of the innermost launcher: the "
        "first in this table whose variables are set. `DLIO_LAUNCHER` names another.\n\n"
        f"{table(('launcher', 'variables'), ranks)}\n"
    )


def formats_page() -> str:
    """Returns the page of all layouts on disk, from the docstrings of the modules that read and write them."""
    parts = [
        "# Formats, byte by byte\n\nA container holds records; a payload is what a record holds. TFRecord, RecordIO "
        "and LMDB hold the payload that their own tools expect of an image with a label, and `tf.train.Example` for "
        "other schemas. Next to each shard lies a [table of its samples](#sample-table).",
        "## Containers",
        *(_documented(f"dlio.formats.{name}", name) for name in sorted(formats.names(), key="tfrecord".__ne__)),
        *(_documented(f"dlio.formats.readonly.{name}", name) for name in formats.read_only_names()),
        *(_documented(f"dlio.formats.layouts.{name}", title) for name, title in LAYOUTS.items()),
        "## Payloads",
        *(_documented(f"dlio.formats.payloads.{name}", title) for name, title in PAYLOADS.items()),
        _documented("dlio.dataset.sample_table", "Sample table", "##"),
    ]
    return "\n\n".join(parts) + "\n"


def sources_page() -> str:
    """Returns the page of all kinds of sources, from their docstrings."""
    head = (
        "# Sources\n\n`dlio pack SRC OUT` recognises the kind of SRC. `--source NAME` names it, and `--option "
        "NAME=VALUE` sets an option of it. The functions are those of [dlio.sources](python/sources.md)."
    )
    parts = [_documented(sources.load(name).__name__, name, "##") for name in sources.names()]
    calls = [_options_of(sources.load(name).open_source) for name in sources.names()]
    return "\n\n".join([head, *(f"{part}\n\n{call}" for part, call in zip(parts, calls, strict=True))]) + "\n"


def public_names(module: str) -> list[str]:
    """Returns the public names of a module, without importing it: its `__all__`, or what it defines."""
    path = ROOT.joinpath(*module.split("."))
    body = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()).body
    listed = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    if listed:
        return [str(name) for name in ast.literal_eval(listed[0])]
    defined = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [name for name in defined if not name.startswith("_")]


def _documented(module: str, title: str, level: str = "###") -> str:
    text = inspect.getdoc(importlib.import_module(module)) or ""
    return f"{level} {title}\n\n{text}"


def _options_of(function: Callable[..., object]) -> str:
    named = [
        parameter for name, parameter in inspect.signature(function).parameters.items() if name not in ("path", "root")
    ]
    shown = names_in_code(f"{one.name}={'' if one.default in ((), None) else one.default}" for one in named)
    return f"Options: {shown}." if shown else "It has no options."


def _verbs_page() -> str:
    named = [(name, getattr(dlio, name)) for name in sorted(dlio.__all__, key=str.swapcase) if name != "sources"]
    head = '# dlio\n\nEach verb of the command line is a function: `dlio.pack("photos", "out")`.\n\n'
    return head + _objects((f"dlio.{name}", f"{kind.__module__}.{kind.__qualname__}") for name, kind in named)


def _sources_page() -> str:
    named = [(name, getattr(dlio.sources, name)) for name in dlio.sources.__all__]
    head = "# dlio.sources\n\n`dlio.pack` takes a path and finds the kind of its source, or takes one of these.\n\n"
    return head + _objects((f"dlio.sources.{name}", f"{kind.__module__}.{kind.__qualname__}") for name, kind in named)


def _errors_page() -> str:
    head = f"# dlio.errors\n\n{inspect.getdoc(errors)}\n\n"
    return head + _objects((path, path) for path in (f"dlio.errors.{kind.__name__}" for kind in _errors()))


def _modules_page(modules: Iterable[str]) -> str:
    head = f"# {', '.join(modules)}\n\n"
    return head + "\n".join(map(_module, modules))


def _module(module: str) -> str:
    text = f"::: {module}\n    options:\n      members: []\n      heading: {module}\n\n"
    return text + _objects(((f"{module}.{name}", f"{module}.{name}") for name in public_names(module)), level=3)


def _objects(shown: Iterable[tuple[str, str]], level: int = 2) -> str:
    text = "::: {path}\n    options:\n      heading: {name}\n      heading_level: {level}\n"
    return "\n".join(text.format(path=path, name=name, level=level) for name, path in shown)


def _errors() -> list[type[errors.DlioError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DlioError)]


def _sentence(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]
