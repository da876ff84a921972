"""The site's pages from files outside docs/: each file that a document links to becomes a page, and the changelog."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"  # the site has its own home page, docs/index.md
CHANGELOG = ROOT / "CHANGELOG.md"  # to which only the navigation leads
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", "": "bash", ".sh": "bash"}


def linked_pages() -> dict[str, str]:
    """Returns the Markdown of each page that is made of a file outside docs/, by the page's path in the site."""
    pages, waiting = {}, [README, CHANGELOG, *DOCS.rglob("*.md")]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        text = _markdown(source)
        if not source.is_relative_to(DOCS) and source != README:
            pages[place(source)] = rewritten(text, source)
        new = {target for _, target in _targets(text, source) if not target.is_relative_to(DOCS)} - seen
        seen |= new
        waiting += sorted(new)
    return pages


def place(source: Path) -> str:
    """Returns where a file of the repository lies in the site."""
    if source.is_relative_to(DOCS):
        return str(source.relative_to(DOCS))
    if source == README:
        return "index.md"
    path = Path("repository", source.relative_to(ROOT))
    return str(path if path.suffix == ".md" else path.with_name(path.name + ".md"))


def file_behind(page: str) -> str:
    """Returns the path in the repository of the file that a page is made of; "" for pages of docs/ and of the code."""
    path = page.removeprefix("repository/")
    if path == page:
        return ""
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def rewritten(text: str, source: Path) -> str:
    """Returns the text of a document with links that hold in the site."""
    here = Path(place(source)).parent
    for link, target in _targets(text, source):
        text = text.replace(f"]({link}", f"]({os.path.relpath(place(target), here)}")
    return text


def _targets(text: str, source: Path) -> Iterator[tuple[str, Path]]:
    for link in sorted(set(LINK.findall(text)), key=len, reverse=True):
        target = (source.parent / link).resolve()
        target = target / "README.md" if target.is_dir() else target
        if "://" not in link and target.is_file() and not source.samefile(target):
            yield link, target


def _markdown(source: Path) -> str:
    text = source.read_text()
    if source.suffix == ".md":
        return text
    return f"# {source.name}\n\n~~~~{_LANGUAGES.get(source.suffix, 'text')}\n{text.rstrip()}\n~~~~\n"
