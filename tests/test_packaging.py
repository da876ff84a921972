"""What a release consists of tells one name, one version and one list of requirements."""

from __future__ import annotations

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
