"""The site's checks: what a page loads from other servers is found, what a reader may follow is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site.linked import file_behind
from tools.site.offline import loaded_from_elsewhere

LOADED = {
    "font.html": '<link rel="preconnect stylesheet" href="https://fonts.example.org/css">',
    "script.html": '<p>text<script src="//cdn.example.org/a.js"></script>',
    "image.html": '<img alt="" src="here.png" srcset="https://example.org/b.png 2x">',
    "style.html": "<style>@font-face { src: url('https://example.org/font.woff2') }</style>",
    "drawing.svg": '<svg xmlns="http://www.w3.org/2000/svg"><image href="http://example.org/c.png"/></svg>',
    "sheet.css": '@import "https://example.org/d.css";',
}
FOLLOWED = """<a href="https://example.org/">a page</a><link rel="canonical" href="https://example.org/here.html">
<code>curl https://example.org/file</code><img alt="" src="../picture.svg"><script src="assets/code.js"></script>"""


@pytest.mark.parametrize("name", LOADED)
def test_what_a_page_loads_from_elsewhere_is_found(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(LOADED[name])
    (found,) = loaded_from_elsewhere(tmp_path)
    assert found.startswith(f"{name}: ") and "example.org/" in found


def test_links_and_text_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(FOLLOWED)
    assert loaded_from_elsewhere(tmp_path) == []


def test_a_page_from_outside_docs_is_edited_where_it_lies() -> None:
    assert file_behind("repository/tools/setup.sh.md") == "tools/setup.sh"
    assert file_behind("repository/CHANGELOG.md") == "CHANGELOG.md"
    assert file_behind("how-to/look.md") == ""
