"""A page of HTML without scripts and links; text of data sets is hostile, so it is cut and escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

_LONGEST = 160  # characters of a name

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5d6b7a; --paper: #ffffff; --card: #f4f6f8;
  --line: #dbe1e7; --accent: #2f6db5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --soft: #9aa7b4; --paper: #14181d; --card: #1e242b;
  --line: #333c46; --accent: #6fa8e6; } }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p, figcaption, .soft { color: var(--soft); } p { margin: .3rem 0 .8rem; max-width: 48rem; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top; }
th { font-weight: 500; color: var(--soft); white-space: nowrap; }
.row { display: flex; flex-wrap: wrap; gap: 1.5rem 3rem; align-items: flex-start; }
.row > div { flex: 1 1 20rem; min-width: 0; } .row figure + figure { margin-top: 1rem; }
.class { border-top: 1px solid var(--line); padding: .5rem 0; display: grid; grid-template-columns: 11rem 1fr;
  gap: 1rem; }
.class div:last-child { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; }
@media (max-width: 40rem) { .class { grid-template-columns: 1fr; gap: .2rem; } }
.class b { display: block; font-weight: 600; } img { display: block; border-radius: 3px; background: var(--card); }
figure { margin: 0; } figcaption { font-size: .8rem; } ul { padding-left: 1.2rem; margin: .3rem 0; }
svg { display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .soft { fill: var(--soft); } svg .bar { fill: var(--accent); }
svg .axis { stroke: var(--line); }
"""


def text(value: object) -> str:
    """Returns text as HTML: cut to a length, without control characters, and escaped."""
    whole = str(value).encode(errors="backslashreplace").decode()
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in whole[: _LONGEST + 1])
    return escape(shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…")


def table(entries: Mapping[str, object]) -> str:
    """Returns a table with a line for each entry."""
    return f"<table>{''.join(f'<tr><th>{text(k)}</th><td>{text(v)}</td></tr>' for k, v in entries.items())}</table>"


def bullets(lines: Iterable[object], most: int = 30) -> str:
    """Returns a list of the first lines, and how many more there are."""
    given = list(lines)
    more = f"<li class=soft>and {len(given) - most:,} more</li>" if len(given) > most else ""
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in given[:most])}{more}</ul>"


def section(title: str, note: str, *parts: str) -> str:
    """Returns a section with a heading and a sentence; the parts are HTML."""
    return f"<h2>{text(title)}</h2>{f'<p>{text(note)}</p>' if note else ''}{''.join(parts)}"


def row(*parts: str) -> str:
    """Returns parts side by side, as far as the page is wide enough."""
    return f'<div class="row">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def figure(inner: str, caption: str) -> str:
    """Returns a chart or an image with a line below it."""
    return f"<figure>{inner}<figcaption>{text(caption)}</figcaption></figure>"


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Returns the whole page."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{text(title)}</title>'
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head += f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{_STYLE}</style>'
    body = f"<h1>{text(title)}</h1><p>{text(subtitle)}</p>{''.join(sections)}"
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
