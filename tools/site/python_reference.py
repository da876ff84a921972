"""The pages of the Python reference: a line `::: NAME` of a page, or of a page made here, becomes the name's docstring.

The pages in `docs/reference/python/` show the names that users call, each with an example. Those for developers who
extend dlio are made from the code, since docs/extending.md has their examples.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import dlio
from dlio import errors

ROOT = Path(__file__).parents[2]
PLACE = "reference/python"

#: Modules whose public names make a page without examples, by the page's name.
MODULES = {
    "benchmark": ["dlio.loaders.dlio_benchmark"],
    "protocols": [
        "dlio.formats", "dlio.pack.listing.base", "dlio.pack.index._layout", "dlio.executors", "dlio.stage.strategies",
        "dlio.random_keys",
    ],
    "testing": [
        "dlio.testing.formats", "dlio.testing.sources", "dlio.testing.engines", "dlio.testing.engine_runner",
        "dlio.testing.strategies",
    ],
}  # fmt: skip

_NAME = re.compile(r"^::: (dlio[\w.]*)$", re.MULTILINE)


def python_pages() -> dict[str, str]:
    """Returns the Markdown of each page that is made from the code, by its path in the site."""
    pages = {name: _modules_page(modules) for name, modules in MODULES.items()} | {"errors": _errors_page()}
    return {f"{PLACE}/{name}.md": text for name, text in pages.items()}


def with_docstrings(markdown: str) -> str:
    """Returns a page with what mkdocstrings needs to know of each `::: NAME`: where it is defined, and its heading."""
    return _NAME.sub(lambda line: _shown(line[1]), markdown)


def names_of(markdown: str) -> list[str]:
    """Returns the names that a page shows, without modules."""
    return [name for name in _NAME.findall(markdown) if not _is_module(name)]


def public_names(module: str) -> list[str]:
    """Returns the public names of a module, without importing it: its `__all__`, or what it defines."""
    path = _path(module)
    body = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()).body
    listed = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    if listed:
        return [str(name) for name in ast.literal_eval(listed[0])]
    defined = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [name for name in defined if not name.startswith("_")]


def error_types() -> list[type[errors.DlioError]]:
    """Returns the types of errors, in the order of their definition."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DlioError)]


def _shown(name: str) -> str:
    options = f"    options:\n      heading: {name}\n      heading_level: {2 if _is_module(name) else 3}\n"
    if _is_module(name):
        options += "      members: []\n"
    return f"::: {_defined(name)}\n{options}"


def _is_module(name: str) -> bool:
    """Returns whether a name is a module's; `dlio.stage` and `dlio.images.composed` are also public names."""
    package, _, last = name.rpartition(".")
    path = _path(name)
    return (path.is_dir() or path.with_suffix(".py").exists()) and last not in public_names(package)


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split("."))


def _defined(name: str) -> str:
    """Returns the name where an object of `dlio` or `dlio.sources` is defined; any other name unchanged."""
    module, _, last = name.rpartition(".")
    package = {"dlio": dlio, "dlio.sources": dlio.sources}.get(module)
    if package is None or last not in package.__all__:
        return name
    kind = getattr(package, last)
    return f"{kind.__module__}.{kind.__qualname__}"


def _modules_page(modules: list[str]) -> str:
    names = [[module, *(f"{module}.{name}" for name in public_names(module))] for module in modules]
    head = f"# {', '.join(modules)}\n\nExamples: [Extending](../../extending.md).\n\n"
    return head + "\n\n".join(f"::: {name}" for group in names for name in group) + "\n"


def _errors_page() -> str:
    names = "\n\n".join(f"::: dlio.errors.{kind.__name__}" for kind in error_types())
    return f"# dlio.errors\n\n{inspect.getdoc(errors)}\n\n{names}\n"
