"""A mutation: one line that carries a promise, changed so that the promise is broken, and the tests that must notice.

The lists are TOML, one table for each mutation:

    [name]
    file = "dlio/..."      the module
    promise = "..."        what the line is for
    old = "..."            text that is in the file exactly once
    new = "..."            what stands there instead
    tests = ["tests/..."]  files or tests; at least one of them must fail
    hang = true            only where the tests wait forever instead of failing
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).with_name("lists")


class MutationError(Exception):
    """A list that cannot be used, or a mutation that does not fit the code any more."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mutation; see above.

    Attributes:
        name: unique, for `--only`.
        file, promise, old, new, tests, hang: as in the lists.
    """

    name: str
    file: str
    promise: str
    old: str
    new: str
    tests: tuple[str, ...]
    hang: bool = False

    @property
    def module(self) -> str:
        """The name by which Python imports the file."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def test_files(self) -> frozenset[str]:
        """The files of its tests."""
        return frozenset(test.partition("::")[0] for test in self.tests)

    def text(self, root: Path = ROOT) -> str:
        """Returns the whole module with the mutation.

        Raises:
            MutationError: the file does not hold the old text exactly once, or the result is not Python.
        """
        path = root / self.file
        before = path.read_text() if path.is_file() else ""
        if (found := before.count(self.old)) != 1:
            raise MutationError(f"{self.file} holds its text {found} times, expected once: {self.old.strip()!r}")
        after = before.replace(self.old, self.new)
        try:
            if _same(_original(before), _statements(after)):
                raise MutationError(f"it changes nothing in {self.file}")
        except SyntaxError as error:
            raise MutationError(f"{self.file} is no Python with it: line {error.lineno}: {error.msg}") from error
        return after


def _statements(text: str) -> list[tuple[list[str], ast.stmt]]:
    """Returns the statements of a module, each with its lines."""
    lines, found = text.splitlines(), []
    for each in ast.parse(text).body:
        first = min((above.lineno for above in getattr(each, "decorator_list", ())), default=each.lineno)
        found.append((lines[first - 1 : each.end_lineno], each))
    return found


_original = lru_cache(16)(_statements)  # most mutations of a file are near each other


def _same(before: list[tuple[list[str], ast.stmt]], after: list[tuple[list[str], ast.stmt]]) -> bool:
    """Returns whether two modules mean the same; only statements with other lines are compared, which takes time."""
    return len(before) == len(after) and all(
        lines == others or ast.dump(one) == ast.dump(other)
        for (lines, one), (others, other) in zip(before, after, strict=True)
    )


def load(folder: Path = LISTS) -> list[Mutation]:
    """Returns the mutations of all lists in a folder, in order.

    Raises:
        MutationError: a list is not of the form above, or two mutations have one name.
    """
    return [mutation for path in sorted(folder.glob("*.toml")) for mutation in parse(path.read_text(), path.stem)]


def parse(text: str, area: str) -> list[Mutation]:
    """Returns the mutations in the text of a list; their names begin with the area's.

    Raises:
        MutationError: it is not of the form above.
    """
    try:
        found = tomllib.loads(text)
        return [Mutation(f"{area}/{name}", tests=tuple(each.pop("tests")), **each) for name, each in found.items()]
    except (tomllib.TOMLDecodeError, TypeError, KeyError, AttributeError) as error:
        raise MutationError(f"{area}.toml is not a list of mutations: {error}") from error
