"""Every verb and option has its help and its place in the documents."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from dlio import errors
from dlio.cli.parser import OF_ALL_VERBS
from dlio.environment import VARIABLES
from tests.helpers.documents import blocks
from tools.site.command_line import command_line, verbs, with_options
from tools.site.python_reference import PLACE, names_of, public_names
from tools.site.reference import exit_codes, reference_pages

README = Path(__file__).parents[2] / "README.md"
PYTHON = README.parent / "docs" / "reference" / "python"
COMMANDS = README.parent / "docs" / "reference" / "commands"
PARTS = ("Example", "Options", "Exit codes", "What it leaves behind", "See also")


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


def test_the_readme_names_every_verb():
    text = README.read_text()
    assert [verb for verb in verbs() if not re.search(rf"`(dlio )?{verb}\b", text)] == []


def test_every_verb_has_a_page():
    assert {path.stem for path in COMMANDS.glob("*.md")} == set(verbs())
    assert [verb for verb in verbs() if f"](commands/{verb}.md)" not in command_line()] == []


@pytest.mark.parametrize("verb", verbs())
def test_the_page_of_a_verb(verb):
    page = with_options((COMMANDS / f"{verb}.md").read_text())
    parts = re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]
    assert [part.partition("\n")[0] for part in parts] == [f"dlio {verb}", *PARTS]
    opening, example, shown = parts[:3]
    assert " ".join(verbs()[verb].description.split()[:5]) in opening
    assert f"\n$ dlio {verb} " in example
    own = set(options(verbs()[verb])) - set(OF_ALL_VERBS)
    assert [option for option in own if not re.search(rf"^\| `(.*[ ,])?{option}[`, ]", shown, re.MULTILINE)] == []
    assert "<!--" not in page


def test_every_environment_variable_of_dlio_is_documented():
    package = Path(dlio.__file__).parent
    modules = [path for path in package.rglob("*.py") if not path.is_relative_to(package / "testing")]
    read = {name for path in modules for name in re.findall(r"\"(DLIO_[A-Z_]+)\"", path.read_text())}
    assert read == set(VARIABLES)


def test_every_exit_code_is_documented():
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    assert {f"| {code} |" for code in codes} <= set(re.findall(r"^\| \d+ \|", exit_codes(), re.MULTILINE))


def test_what_the_documents_import_is_in_the_reference():
    """Except for docs/extending.md, whose modules stand inside dlio and use more of it."""
    pages = [README, *(path for path in (README.parent / "docs").rglob("*.md") if path.name != "extending.md")]
    lines = re.findall(r"^from (dlio\S*) import (.*)$", "\n".join(path.read_text() for path in pages), re.MULTILINE)
    imported = {(module, name) for module, names in lines for name in names.split(", ")}
    assert ("dlio.targets", "WithTargets") in imported
    made = [text for place, text in reference_pages().items() if place.startswith(PLACE)]
    shown = "".join([*made, *(path.read_text() for path in PYTHON.glob("*.md"))])
    assert [name for name in imported if f"::: {'.'.join(name)}\n" not in shown] == []


def test_every_public_name_is_in_the_reference():
    shown = {name for path in PYTHON.glob("*.md") for name in names_of(path.read_text())}
    modules = ("dlio", "dlio.sources", "dlio.images", "dlio.loaders.torch", "dlio.loaders.keras")
    public = {f"{module}.{name}" for module in modules for name in public_names(module)} - {"dlio.sources"}
    assert public - shown == set()


@pytest.mark.parametrize("page", sorted(PYTHON.glob("*.md")), ids=lambda path: path.stem)
def test_every_name_of_a_page_has_an_example(page):
    code = "\n".join(block.text for block in blocks(page) if block.kind == "python")
    names = [name.rpartition(".")[2] for name in names_of(page.read_text())]
    assert len(names) > 3 and [name for name in names if not re.search(rf"\b{name}\b", code)] == []


def test_messages_of_the_page_on_trouble_are_messages_of_dlio():
    """A message's words between the marks for names and numbers stand in one string of the code."""
    strings = "\0".join({text for path in Path(dlio.__file__).parent.rglob("*.py") for text in strings_of(path)})
    quoted = re.findall(r"^\| `(.*?)` \|", (README.parent / "docs" / "trouble.md").read_text(), re.MULTILINE)
    assert len(quoted) > 30
    patterns = {text: r"[^\0]*".join(map(re.escape, re.split(r"\s*…\s*", text))) for text in quoted}
    assert [text for text, pattern in patterns.items() if not re.search(pattern, strings)] == []


def strings_of(path: Path) -> Iterator[str]:
    """Yields the strings of a module, f-strings without what is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
