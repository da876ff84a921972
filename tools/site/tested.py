"""Writes the figures of docs/tested.md that follow from the code: `python -m tools.site.tested [COVERAGE.json]`.

With a report of `coverage json`, as `make coverage` gives it, also the table of what the tests reach.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dlio import executors, formats, sources
from dlio.cli import VERBS
from dlio.stage import strategies
from tools.chaos.__main__ import all_acts
from tools.fuzz.targets import TARGETS
from tools.mutants.mutation import load

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tested.md"
_COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def figures() -> dict[str, int]:
    """Returns what the checkout is counted to hold, by the names of the rows of the first table."""
    tests = [*_below("tests"), *_below("dlio/testing")]
    functions = [node for path in tests for node in _nodes(path) if isinstance(node, ast.FunctionDef)]
    return {
        "lines of Python in `dlio/`": sum(map(_lines, _below("dlio"))) - sum(map(_lines, _below("dlio/testing"))),
        "lines of C++ in the core": sum(map(_lines, _below("dlio/native", "*.?pp"))),
        "lines of tests": sum(map(_lines, tests)),
        "lines of tools that test": sum(
            _lines(path) for name in ("chaos", "fuzz", "mutants") for path in _below(f"tools/{name}")
        ),
        "test functions": sum(function.name.startswith("test_") for function in functions),
        "of these, properties that hypothesis tries to break": sum(map(_is_property, functions)),
        "`assert` statements": sum(isinstance(node, ast.Assert) for path in tests for node in _nodes(path)),
        "verbs of the command line": sum(map(len, VERBS.values())),
        "formats that are written": len(formats.names()),
        "formats that are only read": len(formats.read_only_names()),
        "sources": len(sources.names()),
        "engines": len(executors.names()),
        "staging strategies": len(strategies.names()),
        "recorded environments of launchers": len(list((ROOT / "tests/data/environments").glob("*.json"))),
        "acts of chaos": len(all_acts()),
        "mutations that a test has to notice": len(load()),
        "targets of the fuzzer in Python": len(TARGETS),
        "targets of the fuzzer in C++": len(list((ROOT / "tools/fuzz").glob("fuzz_*.cpp"))),
    }


def reached(report: dict[str, Any]) -> list[tuple[str, Counter[str]]]:
    """Returns the counts of each folder of dlio from a report of `coverage json`, then of all."""
    folders: dict[str, Counter[str]] = {}
    for name, file in report["files"].items():
        parts = Path(name).parts
        folder = "/".join(parts[parts.index("dlio") : -1][:2])
        folders.setdefault(folder, Counter()).update({count: file["summary"][count] for count in _COUNTS})
    return [*sorted(folders.items()), ("all", sum(folders.values(), Counter()))]


def filled(page: str, name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a page with the rows of the table of a name replaced."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table}\n{end}", page, flags=re.DOTALL)


def _below(folder: str, pattern: str = "*.py") -> list[Path]:
    return sorted((ROOT / folder).rglob(pattern))


def _lines(path: Path) -> int:
    """Returns how many lines are neither empty nor a comment alone."""
    lines = map(str.strip, path.read_text().splitlines())
    return sum(bool(line) and not line.startswith(("#", "//")) for line in lines)


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def _is_property(function: ast.FunctionDef) -> bool:
    calls = [each.func for each in function.decorator_list if isinstance(each, ast.Call)]
    return any(isinstance(name, ast.Name) and name.id == "given" for name in calls)


def main() -> None:
    """Writes the tables."""
    page = filled(PAGE.read_text(), "figures", ("what", "number"), [(n, f"{v:,}") for n, v in figures().items()])
    for report in sys.argv[1:]:
        rows = [
            (
                f"`{folder}/`" if folder != "all" else folder,
                f"{counts['num_statements']:,}",
                f"{100 * counts['covered_lines'] / counts['num_statements']:.1f}%",
                f"{counts['num_branches']:,}",
                f"{100 * counts['covered_branches'] / max(1, counts['num_branches']):.1f}%",
            )
            for folder, counts in reached(json.loads(Path(report).read_text()))
        ]
        page = filled(page, "coverage", ("folder", "statements", "reached", "branches", "reached"), rows)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
