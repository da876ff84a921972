"""The parser of the command line: grouped options, examples, what may be meant by a wrong word, completion."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any, NoReturn, TypeAlias

from dlio.cli.options import local_path, path_or_url
from dlio.cli.output import BOLD, painted
from dlio.errors import UsageError, needs_package
from dlio.urls import without_credentials

#: The verbs of a command line.
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: Options that every verb has, and that may stand before the verb.
OF_ALL_VERBS = {
    "--json": "print the report, and an error, as one JSON object",
    "--quiet": "print errors only",
    "--verbose": "log each step",
}
SHELLS = ("bash", "zsh", "tcsh")  # that completion is known for
_GENERAL = "options of all verbs"
_MANY = {"?": "[{}]", "*": "[{} ...]", "+": "{} ..."}


class ArgumentsError(UsageError):
    """Arguments that dlio or the verb does not accept.

    Attributes:
        program: `dlio`, or `dlio VERB`, which was given the arguments.
    """

    def __init__(self, program: str, problem: str) -> None:
        super().__init__(problem)
        self.program = program


class Parser(argparse.ArgumentParser):
    """Raises ArgumentsError, without passwords, and with the likely option, verb or value."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Takes options between the arguments of a verb, too: `dlio stage DATASET --dry-run DEST`."""
        argv = list(sys.argv[1:] if args is None else args)
        if self._subparsers is not None:
            self._refuse([each for each in argv[:1] if each.startswith("-") and not self._get_option_tuples(each)])
        if self._subparsers is not None or self._mixing:
            return super().parse_known_args(args, namespace)
        self.usage = self._short_usage()  # before: to mix them, the base class hides the arguments without dashes
        self._mixing = True
        try:
            runs = "--" in argv and any(action.dest == "command" for action in self._actions)
            at = argv.index("--") if runs else len(argv)  # what follows is another program's, also one more `--`
            found, extra = self.parse_known_intermixed_args(argv[:at], namespace)
            self._refuse(extra)
            if runs:
                found.command = argv[at + 1 :]
            return found, extra
        finally:
            self._mixing = False

    def _refuse(self, extra: Sequence[str]) -> None:
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")

    def error(self, message: str) -> NoReturn:
        raise ArgumentsError(self.prog, without_credentials(message) + self._meant(message))

    def format_usage(self) -> str:
        """Returns the usage, which names only what must be given."""
        self.usage = self.usage or self._short_usage()
        return super().format_usage()

    def format_help(self) -> str:
        """Returns the help; the options of all verbs come last."""
        self._action_groups.sort(key=lambda group: group.title == _GENERAL)
        self.usage = self.usage or self._short_usage()
        return super().format_help()

    def _short_usage(self) -> str:
        if self._subparsers is not None:
            return "%(prog)s [options] VERB ..."
        needed = [action for action in self._actions if action.option_strings and action.required]
        parts = [f"{action.option_strings[0]} {action.metavar}" for action in needed]
        places = [action for action in self._actions if not action.option_strings]
        parts += ["[options]", *(_MANY.get(str(place.nargs), "{}").format(place.metavar) for place in places)]
        return " ".join(["%(prog)s", *parts])

    def _meant(self, message: str) -> str:
        """Returns the option, verb or value that is most like a wrong one."""
        wrong = re.findall(r"choice: '(.*?)'", message)
        option = re.match(r"argument ([\w/-]+)", message)
        of_value = self._option_string_actions.get(option[1].partition("/")[0]) if option else None
        if of_value is not None:
            known = list(map(str, of_value.choices or ()))
        else:
            known = [*self._option_string_actions, *chain(*map(_choices, self._actions if wrong else ()))]
            wrong = wrong or re.findall(r"unrecognized.*?(--[\w-]+)", message)
        names = {name.lstrip("-"): name for name in known}  # without dashes, which all options share
        found = [names[close] for word in wrong for close in _like(word.lstrip("-"), names)]
        return f": did you mean {found[0]}?" if found else ""


def _like(word: str, names: Iterable[str]) -> list[str]:
    """Returns a name that ends with the word, such as num-shards with shards, else the one most like it."""
    return [name for name in names if name.endswith(f"-{word}")][:1] or get_close_matches(word, names, 1)


def _choices(action: argparse.Action) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of verbs."""
    return dict(action.choices or {}) if isinstance(action, argparse._SubParsersAction) else {}


class _Help(argparse.HelpFormatter):
    """Leaves the lines of examples unchanged, and prints headings in bold on a terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return text
        return super()._fill_text(text, width, indent)

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and painted(heading, BOLD, sys.stdout))


def add_verb(verbs: Verbs, function: Callable[[argparse.Namespace], int], *examples: str) -> argparse.ArgumentParser:
    """Returns a new parser for a verb, with the name and the docstring of `function`.

    Args:
        verbs: where it is added.
        function: carries the verb out, and returns the exit code.
        examples: command lines, without `dlio`.
    """
    first, _, rest = (function.__doc__ or "").strip().partition("\n")
    name = function.__name__
    shown = "\n".join(
        ["examples:", *(f"  dlio {example}" for example in examples), "", f"more: docs/reference/commands/{name}.md"]
    )
    verb: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=first,
        description=" ".join(f"{first} {rest}".split()),
        epilog=shown,
        formatter_class=_Help,
        add_help=False,
    )
    verb.set_defaults(function=function)
    general = verb.add_argument_group(_GENERAL)
    general.add_argument("-h", "--help", action="help", help="print this help")
    for option, purpose in OF_ALL_VERBS.items():
        general.add_argument(option, action="store_true", help=purpose)
    return verb


class PrintCompletion(argparse.Action):
    """Prints the script that completes verbs, options, values and paths in a shell."""

    def __call__(self, top: argparse.ArgumentParser, args: object, shell: Any, option: object = None) -> None:
        with needs_package("shtab", "completion", "shell completion"):
            import shtab
        functions = []
        for program, action in _all_actions(top):
            if values := getattr(action, "values", ()):
                values_text, name = " ".join(values), f"_{program}_{action.dest}".replace(" ", "_")
                functions.append(f'{name}() {{ compgen -W "{values_text}" -- "$1"; }}')
                action.complete = {"bash": name, "zsh": f"({values_text})", "tcsh": f"({values_text})"}  # type: ignore[attr-defined]
            elif action.type in (local_path, path_or_url):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(top, shell, preamble="\n".join(functions) if shell == "bash" else ""))
        top.exit()


def _all_actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yields the arguments of a parser and of its verbs, each with the name of its program or verb."""
    for action in parser._actions:
        yield parser.prog, action
        for verb in _choices(action).values():
            yield from _all_actions(verb)
