"""Every verb and option has its help and its place in the README."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

import dlio
from dlio import cli

README = Path(__file__).parents[2] / "README.md"


def verbs() -> dict[str, argparse.ArgumentParser]:
    actions = [action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return actions[0].choices


def options(verb: argparse.ArgumentParser) -> list[str]:
    return [name for action in verb._actions for name in action.option_strings if name not in ("-h", "--help")]


def test_the_version(run):
    assert run("--version") == (0, f"dlio {dlio.__version__}\n", "")


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help(run, verb):
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert all(name in out for name in options(verbs()[verb]))
    for action in verbs()[verb]._actions:
        assert action.help, f"{verb} {action.dest} has no help"


@pytest.mark.parametrize("verb", verbs())
def test_the_readme_documents_every_verb_and_option(verb):
    text = README.read_text()
    assert f"dlio {verb}" in text
    undocumented = [name for name in options(verbs()[verb]) if not re.search(rf"`[^`]*{re.escape(name)}\b", text)]
    assert undocumented == []
