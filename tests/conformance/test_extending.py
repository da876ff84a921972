"""The examples of docs/extending.md work: its package packs, verifies, stages and loads, and passes the suites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.images import make_image_folder

DOCUMENT = Path(__file__).parents[2] / "docs" / "extending.md"
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(kind, text) for kind, text in FENCED.findall(DOCUMENT.read_text())]
FILES = {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCKS if kind == "python"}
COMMANDS = [line[2:] for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
MODULES = [name for name in FILES if name.startswith("mypackage/")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the document and images.jsonl, where `mypackage` can be imported."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    names = make_image_folder(tmp_path / "images", {"cat": 5, "dog": 4})
    lines = [f'{{"image": "images/{name}", "label": {number % 2}}}\n' for number, name in enumerate(names)]
    (tmp_path / "images.jsonl").write_text("".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


def run(command: str, folder: Path) -> str:
    """Returns what a command prints."""
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_is_a_module_of_each_kind() -> None:
    kinds = ["plain", "theirs", "json_lines", "threads", "scattered", "corners", "invert", "dlpack"]
    assert sorted(MODULES) == sorted(f"mypackage/{kind}.py" for kind in kinds)


@pytest.mark.parametrize("name", FILES)
def test_no_file_has_more_than_forty_lines_of_code(name: str) -> None:
    lines = [line for line in FILES[name].splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) < 40


def test_the_commands_do_the_whole_job(folder: Path) -> None:
    *_, trained = [run(command, folder) for command in COMMANDS]
    sizes = [4, 4, 1]  # 9 images
    assert trained.splitlines() == [
        f"({size}, 16, 16, 3) {labels}" for size, labels in zip(sizes, re.findall(r"\[.*\]", trained), strict=True)
    ]


def test_a_dry_run_names_a_strategy_of_another_package(folder: Path) -> None:
    run(COMMANDS[0], folder)
    said = run("dlio stage packed local --strategy mypackage.scattered --dry-run", folder)
    assert "mypackage.scattered" in said


def test_the_published_suites_pass(folder: Path) -> None:
    run(f"{sys.executable} -m pytest -q -x -p no:cacheprovider --basetemp={folder / 'temp'} test_mypackage.py", folder)
