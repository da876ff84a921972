"""The site's description of the command line, from its parsers: the overview, and the options in each verb's page.

A page `docs/reference/commands/VERB.md` holds what the parser does not know: an example, what the verb leaves
behind. Two marks stand for the rest, `<!-- purpose of VERB -->` and `<!-- options of VERB -->`.
"""

from __future__ import annotations

import argparse
import re
from textwrap import dedent

from dlio import cli
from dlio.cli.parser import OF_ALL_VERBS
from tools.site.tables import escaped, table

_MARK = re.compile(r"<!-- (purpose|options) of (\w+) -->")


def verbs() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each verb."""
    actions = [action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices)


def command_line() -> str:
    """Returns the overview: each verb with a link to its page, and the options that belong to no verb."""
    rows = [(f"[`{name}`](commands/{name}.md)", _purpose(verb)[0]) for name, verb in verbs().items()]
    parts = [
        "# Command line",
        table(("verb", "meaning"), rows),
        "`dlio VERB --help` prints the options. Options may stand before or after the arguments. Sizes may be written "
        "`256MiB`, rates `100M`. In Python each verb is a function of the same name: [dlio](python/dlio.md). The [exit "
        "codes](exit-codes.md) are the same for all verbs.",
        "## Options without a verb",
        _options(cli.parser()),
        "## Options of all verbs",
        table(("option", "meaning"), [(f"`{name}`", escaped(text)) for name, text in OF_ALL_VERBS.items()]),
    ]
    return "\n\n".join(parts) + "\n"


def with_options(markdown: str) -> str:
    """Returns a verb's page with what its parser says, instead of the marks."""
    return _MARK.sub(lambda mark: {"purpose": _opening, "options": _of_verb}[mark[1]](verbs()[mark[2]]), markdown)


def _opening(verb: argparse.ArgumentParser) -> str:
    """Returns how a verb is called, and what it does: the first sentence, then the rest."""
    verb.formatter_class = _Wide
    usage = dedent(verb.format_usage().replace("usage:", " " * 6, 1))
    first, rest = _purpose(verb)
    return "\n\n".join(filter(None, (first, f"```text\n{usage}```", rest)))


def _purpose(verb: argparse.ArgumentParser) -> tuple[str, str]:
    first, _, rest = (verb.description or "").partition(". ")
    return escaped(first.rstrip(".") + "."), escaped(rest)


class _Wide(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=88)


def _of_verb(verb: argparse.ArgumentParser) -> str:
    return f"{_options(verb)}\n\nAnd the [options of all verbs](../command-line.md#options-of-all-verbs)."


def _options(parser: argparse.ArgumentParser) -> str:
    """Returns a table of a parser's arguments, below the headings of its own help."""
    formatter = parser._get_formatter()
    parts = []
    for group in parser._action_groups:
        rows = [
            (f"`{formatter._format_action_invocation(action)}`", escaped(formatter._expand_help(action)))
            for action in group._group_actions
            if not _is_left_out(action)
        ]
        if rows:
            parts.append(table((_title(group.title), "meaning"), rows))
    return "\n\n".join(parts)


def _is_left_out(action: argparse.Action) -> bool:
    """Returns whether an option is in the overview, or nowhere."""
    is_of_all = action.option_strings[:1] in [[name] for name in OF_ALL_VERBS]
    return is_of_all or action.dest == "help" or isinstance(action, argparse._SubParsersAction)


def _title(title: str | None) -> str:
    return {"positional arguments": "argument", "options": "option"}.get(title or "", title or "")
