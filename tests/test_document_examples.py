"""Every example in the documents does what it shows, or compiles or parses; see `tests/helpers/documents.py`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import documents
from tests.helpers.rounds import ROUNDS
from tests.helpers.squashfs import needs

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("tools/*/*.md"), ROOT / "README.md"]
RUN = [
    "start",
    "choose",
    "plan",
    "how-to/resume",
    "how-to/storage",
    "how-to/datasets",
    "how-to/detection",
    "how-to/python",
    "how-to/sets",
    "how-to/in-place",
    "how-to/any-file",
    "how-to/odd-images",
    "how-to/coming-from",
    "how-to/files",
    "reference/manifest",
    *(f"reference/python/{name}" for name in ("dlio", "sources", "images", "torch", "staging", "hub")),
]
COMMANDS = sorted(f"reference/commands/{path.stem}" for path in ROOT.glob("docs/reference/commands/*.md"))
MOUNT = "reference/commands/mount"
HEAVY = ["index", "how-to/torch", "how-to/tensorflow", "how-to/jax", "reference/commands/bench"]
HEAVY += ["reference/python/tensorflow", "reference/python/jax"]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """The frameworks of the examples keep their own threads."""
    yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the photos of the page Start, and what it packs."""
    folder = tmp_path_factory.mktemp("prepared")
    documents.prepare(folder)
    return folder


def run(page: str, folder: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if page != "start":
        shutil.copytree(prepared, folder, dirs_exist_ok=True)
    documents.run(documents.blocks(ROOT / "docs" / f"{page}.md"), folder)


@pytest.mark.parametrize("page", [*RUN, *(page for page in COMMANDS if page not in (MOUNT, *HEAVY))])
def test_a_page_does_what_it_shows(page: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, tmp_path, prepared, monkeypatch)


@needs("squashfuse_ll", "fusermount3", "/dev/fuse")
def test_the_page_of_mount_does_what_it_shows(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(MOUNT, tmp_path, prepared, monkeypatch)


@pytest.mark.skipif(ROUNDS == 1, reason="imports every framework: DLIO_TEST_ROUNDS=2 runs it, as make soak does")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", HEAVY)
def test_a_page_on_a_framework_does_what_it_shows(
    page: str, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DLIO_LAUNCHER", "env")
    run(page, tmp_path, prepared, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_compile_and_commands_parse(page: Path) -> None:
    for block in documents.blocks(page):
        if block.kind == "python":
            documents.compiles(block)
        elif block.kind in ("console", "sh"):
            for command, _ in documents.commands(block):
                documents.parsed(command)


def test_every_page_is_run_or_names_a_machine() -> None:
    """A page with examples is run here, in another test, or has only commands for a cluster."""
    elsewhere = {
        "how-to/look",
        "extending",
        "loaders",
        "live",
        "simulated",
        "how-to/two-nodes",
        "how-to/timm",
        "how-to/hugging-face",
    }
    for path in ROOT.glob("docs/**/*.md"):
        page = str(path.relative_to(ROOT / "docs").with_suffix(""))
        kinds = {block.kind for block in documents.blocks(path)} & {"python", "console"}
        assert not kinds or page in {*RUN, *COMMANDS, *HEAVY, *elsewhere}, f"{page} has examples that nothing runs"
