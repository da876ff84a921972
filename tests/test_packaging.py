"""What a release consists of tells one name, one version and one list of requirements."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import dlio
from dlio.errors import DISTRIBUTION

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"xxhash": "python-xxhash"}


def test_the_distribution_has_the_name_that_messages_tell():
    assert PROJECT["name"] == DISTRIBUTION
    assert metadata.version(DISTRIBUTION) == dlio.__version__


def test_all_means_all_extras():
    extras = PROJECT["optional-dependencies"]
    (line,) = extras["all"]
    assert set(re.split(r"[\[\],]", line)) - {""} == {DISTRIBUTION, *extras} - {"all", "docs", "test"}


@pytest.mark.parametrize("path", ["CITATION.cff", "packaging/conda/recipe.yaml", "packaging/easybuild.eb"])
def test_the_version_is_the_same_everywhere(path):
    (version,) = re.findall(r"^ *version *[:=] *[\"']?([\d.]+)", (ROOT / path).read_text(), re.MULTILINE)
    assert version == dlio.__version__


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_recipes_require_what_pip_requires(line):
    name, least = line.split(">=")
    assert f"- {CONDA_NAMES.get(name, name)} >={least}\n" in (ROOT / "packaging/conda/recipe.yaml").read_text()
    assert f'"py-{name}@{least}:"' in (ROOT / "packaging/spack/package.py").read_text()


def test_each_message_asks_for_an_extra_that_holds_the_package() -> None:
    calls = [
        (ast.literal_eval(node.args[0]), ast.literal_eval(node.args[1]))
        for path in (ROOT / "dlio").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "missing_package"
    ]
    assert len(calls) > 10
    brought_along = {"keras": "tensorflow"}
    for package, extra in calls:
        names = [re.split(r"[>=<\[]", line)[0] for line in PROJECT["optional-dependencies"][extra]]
        assert brought_along.get(package, package) in names, (package, extra)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_pages_name_extras_that_exist_and_the_right_distribution(path: Path) -> None:
    text = path.read_text()
    for names in re.findall(r"pip install '[^'\[]*\[([\w,]+)\]'", text):
        assert set(names.split(",")) <= set(PROJECT["optional-dependencies"])
    assert not re.search(r"pip install (-U )?dlio\b(?!-toolkit|_toolkit)", text)


def test_actions_of_others_are_pinned_by_their_commits() -> None:
    used = [
        line
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert used and [line for line in used if not re.search(r"@[0-9a-f]{40} +# v\d+\.\d+\.\d+$", line)] == []
