"""Finds what pages would load from other servers: it must be nothing, so that the site works offline.

`make docs` fails if a page loads such a thing. Links that a reader follows do not count.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

#: Attributes whose file a browser loads at once, by tag.
_LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
_RELATIONS = {"icon", "dns-prefetch", "manifest", "modulepreload", "preconnect", "prefetch", "preload", "stylesheet"}
_ELSEWHERE = re.compile(r"(?:https?:)?//[^\s\"')]+")
_IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\s\"')]+)")


class _Page(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        loaded = [given.get(name, "") for name in _LOADED.get(tag, ())]
        if tag == "link" and _RELATIONS.intersection(given.get("rel", "").lower().split()):
            loaded.append(given.get("href", ""))
        self.found += [address for value in loaded for address in _ELSEWHERE.findall(value)]


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Returns a line for each file of another server that a page, a style sheet or a drawing of a site loads."""
    lines = []
    for path in sorted(site.rglob("*.*")):
        if path.suffix in (".html", ".svg", ".css"):
            text = path.read_text()
            page = _Page()
            if path.suffix != ".css":
                page.feed(text)
            lines += [f"{path.relative_to(site)}: {each}" for each in (*page.found, *_IN_STYLES.findall(text))]
    return lines
