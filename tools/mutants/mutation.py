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
            if ast.dump(ast.parse(after)) == ast.dump(ast.parse(before)):
                raise MutationError(f"it changes nothing in {self.file}")
        except SyntaxError as error:
            raise MutationError(f"{self.file} is no Python with it: line {error.lineno}: {error.msg}") from error
        return after


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
