"""The pages for timm and for Hugging Face's datasets do what they show, with the real packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers import documents
from tests.peers import installed

pytestmark = pytest.mark.jobs

JOB = Path(__file__).with_name("page_job.py")


@pytest.mark.parametrize(
    ("page", "packages"), [("timm", ("timm", "torchvision")), ("hugging-face", ("datasets", "dill", "multiprocess"))]
)
def test_a_page_does_what_it_shows(page: str, packages: tuple[str, ...], tmp_path: Path) -> None:
    installed.require(*packages)
    documents.prepare(tmp_path)
    own = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    installed.run([sys.executable, "-W", "ignore", JOB, installed.ROOT / f"docs/how-to/{page}.md", tmp_path], own)
