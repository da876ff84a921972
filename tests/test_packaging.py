"""All parts of a release have the same name, version and requirements."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import dlio
from dlio.errors import DISTRIBUTION, missing_package, requirements

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA_NAMES = {"xxhash": "python-xxhash"}
DEBIAN_NAMES = {"pillow": "pil"}
SPACK = "packaging/spack/packages/py-dlio-toolkit/package.py"

SOURCES = sorted((ROOT / "dlio").rglob("*.py"))
TOLD = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packaging/*"), *SOURCES]
PIP_LINE = re.compile(r"pip install ([^`\n]*)")
# What dlio is in a line for pip: a checkout, a file that `make wheels` leaves, or its name in an index.
OWN = re.compile(r"(?:\.|\$\(echo [\w/*.]+\)|[\w-]*dlio[\w-]*(?:\*\.whl|\*\.tar\.gz)?)(?:\[([\w,]+)\])?")
CALLED = re.compile(r"(?:missing|needs)_package\(\"([\w-]+)\", \"(\w+)\"|(?<!def )\brequirements\(\"(\w+)\"\)")


def test_the_distribution_has_the_name_that_messages_tell():
    assert PROJECT["name"] == DISTRIBUTION
    assert metadata.version(DISTRIBUTION) == dlio.__version__


def test_all_means_all_extras():
    (line,) = EXTRAS["all"]
    assert set(re.split(r"[\[\],]", line)) - {""} == {DISTRIBUTION, *EXTRAS} - {"all", "docs", "test"}


@pytest.mark.parametrize(
    "path", ["CITATION.cff", "packaging/conda/recipe.yaml", "packaging/debian/changelog", "packaging/easybuild.eb"]
)
def test_the_version_is_the_same_everywhere(path):
    text = (ROOT / path).read_text()
    (version,) = re.findall(r"^(?: *version *[:=] *[\"']?|dlio-toolkit \()([\d.]+)", text, re.MULTILINE)
    assert version == dlio.__version__


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_recipes_require_what_pip_requires(line):
    name, least = line.split(">=")
    assert f"- {CONDA_NAMES.get(name, name)} >={least}\n" in (ROOT / "packaging/conda/recipe.yaml").read_text()
    assert f'"py-{name}@{least}:"' in (ROOT / SPACK).read_text()
    assert f" python3-{DEBIAN_NAMES.get(name, name)},\n" in (ROOT / "packaging/debian/control").read_text()


def _own_words() -> list[tuple[str, str, str]]:
    """Returns path, name and extras of each thing that is dlio's own in a line for pip."""
    found = []
    for path in TOLD:
        text = path.read_text() if path.is_file() else ""
        for line in PIP_LINE.findall(text):
            words = (OWN.fullmatch(word) for word in re.split(r"[\s\"']+(?![\w/*.]+\))", line))
            found += [(path.name, word[0].partition("[")[0], word[1] or "") for word in words if word]
    return found


def test_every_line_for_pip_has_the_right_name_and_extras_that_exist():
    words = _own_words()
    assert {"Dockerfile", "README.md", "dlio.def", "install.md"} <= {path for path, _, _ in words}
    wrong = [word for word in words if "dlio" in word[1] and not re.match(r"dlio[-_]toolkit(-|$)", word[1])]
    wrong += [word for word in words if not set(word[2].split(",")) <= {"", *EXTRAS}]
    assert wrong == []


def test_every_error_of_a_missing_package_names_an_extra_that_has_it():
    calls = [call for path in SOURCES for call in CALLED.findall(path.read_text())]
    assert len(calls) > 10
    for package, extra, of in calls:
        words = requirements(extra or of)
        assert [re.split("[>=]", line)[0] for line in EXTRAS[extra or of]] == re.findall(r"'([\w-]+)", words)
        if package:
            assert str(missing_package(package, extra, "this")).endswith(f": pip install {words}")
            assert package == "keras" or f"'{package}>" in words  # TensorFlow brings Keras


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda path: path.name)
def test_workflows_name_actions_by_commit_and_may_only_read(path):
    text = path.read_text()
    lines = [line for line in text.splitlines() if "uses:" in line]
    assert [line for line in lines if not re.fullmatch(r" +- uses: [\w/-]+@[0-9a-f]{40}  # v[\d.]+", line)] == []
    assert "\npermissions:\n  contents: read\n" in text
