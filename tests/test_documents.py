"""Documents name files that exist, and drawings are those of the figures."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tools.site.chart import charts
from tools.site.linked import linked_pages
from tools.site.pictures.__main__ import MADE, PICTURES
from tools.site.reference import reference_pages
from tools.site.tested import PAGE, figures

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "docs", "docs/*", "docs/*/*", ".github", "tools/*", "benchmarks")
DOCUMENTS = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md")]
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)#\s]+)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
NAMED = re.compile(r"`(?:python )?((?:dlio|tests|tools|benchmarks|docs)/[\w./*-]*)`")
PLACEHOLDER = re.compile(r"/[A-Z-]+(\.\w+)?$")  # dlio/formats/NAME.py


@cache
def made() -> set[Path]:
    """Returns the pages that `make docs` makes from the code."""
    return {ROOT / "docs" / page for page in reference_pages()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_lead_to_files(document: Path) -> None:
    text = document.read_text()
    links = [target for target in LINK.findall(text) if "://" not in target]
    missing = [target for target in links if not (document.parent / target).exists()]
    missing = [target for target in missing if (document.parent / target).resolve() not in made()]
    if document.name != "CHANGELOG.md":  # which also tells of what was
        paths = [path for path in NAMED.findall(text) if not PLACEHOLDER.search(path)]
        missing += [path for path in paths if not any(ROOT.glob(path.rstrip("/")))]
    assert missing == []


def test_the_drawing_names_the_folders_of_dlio() -> None:
    text = re.sub(r"<[^>]*>", " ", (ROOT / "docs" / "architecture.svg").read_text())
    folders = {path.parent.name for path in (ROOT / "dlio").glob("*/__init__.py")} - {"testing"}
    assert folders == set(re.findall(r"(\w+)/", text)) - {"dlio"}
    rooms = ("pack", "stage", "loaders")
    parts = {path.parent.name.strip("_") for room in rooms for path in (ROOT / "dlio" / room).glob("*/__init__.py")}
    assert parts <= set(re.findall(r"[a-z]+", text))


def test_the_charts_are_those_of_the_tables() -> None:
    assert {path: path.read_text() for path in charts()} == charts(), "run python -m tools.site.chart"


def test_pictures_are_shown_described_and_small() -> None:
    images = [(document, alt, target) for document in DOCUMENTS for alt, target in IMAGE.findall(document.read_text())]
    assert [target for _, alt, target in images if len(alt.split()) < 4] == []
    made = set(PICTURES.iterdir())
    assert made <= {(document.parent / target).resolve() for document, _, target in images}
    assert {path.stem.removesuffix("-light").removesuffix("-dark") for path in made} == set(MADE)
    assert sum(path.stat().st_size for path in made) < 600_000


def test_the_figures_of_how_dlio_is_tested_are_the_codes() -> None:
    table = PAGE.read_text().partition("<!-- figures -->")[2].partition("<!-- end")[0]
    stated = {
        name: int(number.replace(",", "")) for name, number in re.findall(r"^\| (.+) \| ([\d,]+) \|$", table, re.M)
    }
    assert stated == pytest.approx(figures(), rel=0.05), "run python -m tools.site.tested"


def test_every_entry_of_the_comparison_names_its_source() -> None:
    tables = (ROOT / "docs" / "compare.md").read_text().partition("## When not")[0]
    rows = [line.strip("| ").split(" | ") for line in tables.splitlines() if line.startswith("| ")]
    entries = [cell for row in rows if row[0] != "tool" for cell in row[1:]]
    assert len(entries) > 80 and [cell for cell in entries if "](" not in cell] == []


def test_the_navigation_names_every_page_and_only_pages() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert written <= named <= written | linked_pages().keys() | reference_pages().keys()
