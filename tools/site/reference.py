"""The site's reference pages that are made from the code: command line, exit codes, environment, formats, sources."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable

from dlio import errors, formats
from dlio.cluster.launchers import _JOB_VARIABLES, LAUNCHERS
from dlio.environment import VARIABLES
from dlio.io.filesystems import _LOCAL_VARIABLES
from dlio.pack import sources
from tools.site.command_line import command_line
from tools.site.python_reference import error_types, python_pages
from tools.site.tables import names_in_code, table

LAYOUTS = {"lmdb": "Pages of LMDB", "tar": "Tar"}
PAYLOADS = {
    "example": "tf.train.Example",
    "irheader": "MXNet's image record",
    "datum": "Caffe's Datum",
    "members": "Files of a WebDataset tar",
}


def reference_pages() -> dict[str, str]:
    """Returns the Markdown of each generated page, by its path in the site."""
    return {
        "reference/command-line.md": command_line(),
        "reference/exit-codes.md": exit_codes(),
        "reference/environment.md": environment(),
        "reference/formats.md": formats_page(),
        "reference/sources.md": sources_page(),
    } | python_pages()


def exit_codes() -> str:
    """Returns the page of exit codes and of the errors behind them, from `dlio.errors`."""
    rows = [
        (errors.EXIT_DONE, "", "done"),
        (errors.EXIT_SKIPPED, "", "done, but some samples were skipped, or are damaged; they are listed"),
        *(
            (kind.exit_code, f"`{kind.__name__}`", _sentence(kind))
            for kind in error_types()
            if kind is not errors.DlioError
        ),
        (
            errors.EXIT_INTERRUPTED,
            "`KeyboardInterrupt`",
            "interrupted by Ctrl-C; the same command continues from there",
        ),
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


def _documented(module: str, title: str, level: str = "###") -> str:
    text = inspect.getdoc(importlib.import_module(module)) or ""
    return f"{level} {title}\n\n{text}"


def _options_of(function: Callable[..., object]) -> str:
    named = [
        parameter for name, parameter in inspect.signature(function).parameters.items() if name not in ("path", "root")
    ]
    shown = names_in_code(f"{one.name}={'' if one.default in ((), None) else one.default}" for one in named)
    return f"Options: {shown}." if shown else "It has no options."


def _sentence(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]
