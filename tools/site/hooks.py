"""What mkdocs asks for while it builds the site: the generated pages, and links that hold there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.site.command_line import with_options
from tools.site.linked import linked_pages, rewritten
from tools.site.python_reference import with_docstrings
from tools.site.reference import reference_pages


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made from code, and from documents outside docs/."""
    for place, text in (linked_pages() | reference_pages()).items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adds options and docstrings, and lets links of a document to files outside docs/ lead to their pages."""
    markdown, path = with_docstrings(with_options(markdown)), page.file.abs_src_path
    return rewritten(markdown, Path(path)) if path else markdown
