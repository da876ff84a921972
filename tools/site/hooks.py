"""Hooks of mkdocs for the site: the generated pages, links that hold there, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from tools.site.command_line import with_options
from tools.site.linked import file_behind, linked_pages, rewritten
from tools.site.offline import loaded_from_elsewhere
from tools.site.python_reference import with_docstrings
from tools.site.reference import reference_pages


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made from code, and from documents outside docs/."""
    for place, text in (linked_pages() | reference_pages()).items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Adds options, docstrings and links, and where a page is edited that is made of a file outside docs/."""
    if outside := file_behind(page.file.src_uri):
        page.edit_url = urljoin(f"{config.repo_url}/", f"{config.edit_uri}../{outside}")
    markdown, path = with_docstrings(with_options(markdown)), page.file.abs_src_path
    return rewritten(markdown, Path(path)) if path else markdown


def on_post_build(config: Any) -> None:
    """Ends the build if the site would load anything from another server.

    Raises:
        PluginError: it would; names page and address.
    """
    if found := loaded_from_elsewhere(Path(config.site_dir)):
        raise PluginError("\n".join(["the site must work offline, but loads:", *found]))
