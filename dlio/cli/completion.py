"""Shell completion by shtab: verbs, options, paths, and the values that an option knows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from dlio.cli.options import local_path, path_or_url
from dlio.errors import missing_package

SHELLS = ("bash", "zsh", "tcsh")


class PrintCompletion(argparse.Action):
    """Prints the script that completes verbs, options, values and paths in a shell."""

    def __call__(self, top: argparse.ArgumentParser, args: object, shell: Any, option: object = None) -> None:
        try:
            import shtab
        except ImportError as error:
            raise missing_package("shtab", "completion", "shell completion") from error
        functions = []
        for program, action in _actions(top):
            if values := getattr(action, "values", ()):
                words, name = " ".join(values), f"_{program}_{action.dest}".replace(" ", "_")
                functions.append(f'{name}() {{ compgen -W "{words}" -- "$1"; }}')
                action.complete = {"bash": name, "zsh": f"({words})", "tcsh": f"({words})"}  # type: ignore[attr-defined]
            elif action.type in (local_path, path_or_url) or _is_place(action):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(top, shell, preamble="\n".join(functions) if shell == "bash" else ""))
        top.exit()


def _is_place(action: argparse.Action) -> bool:
    """Returns whether an argument takes any text without an option before it: a data set, which may be a folder."""
    return not action.option_strings and action.type is None and action.choices is None


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yields the arguments of a parser and of its verbs, each with the program's words."""
    for action in parser._actions:
        yield parser.prog, action
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from _actions(verb)
