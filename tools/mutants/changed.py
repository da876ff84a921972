"""Which mutations a change touches: by the file that they change, by their tests, and by their own text."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile

from tools.mutants.mutation import LISTS, ROOT, Mutation, MutationError, parse

_MAIN = ("origin/main", "main")


def base_of_change() -> str:
    """Returns the commit that the checkout is compared with.

    That is where it left the main branch. On the main branch itself it is the state before the last commit or merge. In
    a clone without any history it is the empty string: all counts as changed.
    """
    head = _git("rev-parse", "HEAD").strip()
    for name in _MAIN:
        with suppress(MutationError):
            if (base := _git("merge-base", name, "HEAD").strip()) != head:
                return base
    with suppress(MutationError):
        return _git("rev-parse", "--verify", "--quiet", "HEAD^1").strip()
    return ""


def touched(mutations: Sequence[Mutation], base: str) -> list[Mutation]:
    """Returns the mutations that the changes since a commit touch, those of changed modules and lists first.

    Raises:
        MutationError: git does not know the commit.
    """
    if not base:
        return list(mutations)
    committed = _git("diff", "--name-only", base, "--").splitlines()
    changed = {*committed, *_git("ls-files", "--others", "--exclude-standard").splitlines()}
    known = set(_listed_at(base, changed))
    direct = [each for each in mutations if each.file in changed or (_is_in(each, changed) and each not in known)]
    return direct + [each for each in mutations if each not in direct and each.test_files & changed]


def _list_of(area: str) -> str:
    return str((LISTS / f"{area}.toml").relative_to(ROOT))


def _is_in(mutation: Mutation, changed: set[str]) -> bool:
    return _list_of(mutation.name.partition("/")[0]) in changed


def _listed_at(base: str, changed: Iterable[str]) -> list[Mutation]:
    """Returns the mutations that changed lists held at a commit."""
    found: list[Mutation] = []
    folder = str(LISTS.relative_to(ROOT))
    for name in changed:
        if name.startswith(folder):
            area = name.removeprefix(f"{folder}/").removesuffix(".toml")
            with suppress(MutationError):  # a new list
                found += parse(_git("show", f"{base}:{name}"), area)
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        said = "".join(takewhile(lambda letter: letter != "\n", done.stderr))
        raise MutationError(f"git {' '.join(arguments)}: {said or 'nothing found'}")
    return done.stdout
