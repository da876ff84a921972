"""The parts of a report's page, without scripts and links: text, tables, charts as inline SVG, images as JPEG.

Text of data sets is hostile, so it is cut and escaped here. The charts' colours are those of the page, light or dark.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

import numpy as np
import numpy.typing as npt
from PIL import Image

from dlio.codecs.pillow import encoded

_LONGEST = 160  # characters of a name
_WIDTH, _LABEL, _LINE = 560, 170, 18  # of a chart of bars, pixels
_BINS, _BULLETS = 40, 30
_SIDE = 96  # of a small image, pixels
_QUALITIES = (80, 60, 40, 20)

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


def bullets(lines: Iterable[object]) -> str:
    """Returns a list of the first lines, and how many more there are."""
    given = list(lines)
    more = f"<li class=soft>and {len(given) - _BULLETS:,} more</li>" if len(given) > _BULLETS else ""
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in given[:_BULLETS])}{more}</ul>"


def section(title: str, note: str, *parts: str) -> str:
    """Returns a section with a heading and a sentence; the parts are HTML."""
    return f"<h2>{text(title)}</h2>{f'<p>{text(note)}</p>' if note else ''}{''.join(parts)}"


def row(*parts: str) -> str:
    """Returns parts side by side, as far as the page is wide enough."""
    return f'<div class="row">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def figure(inner: str, caption: str) -> str:
    """Returns a chart or an image with a line below it."""
    return f"<figure>{inner}<figcaption>{text(caption)}</figcaption></figure>"


def whole(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Returns the whole page."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{text(title)}</title>'
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head += f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{_STYLE}</style>'
    body = f"<h1>{text(title)}</h1><p>{text(subtitle)}</p>{''.join(sections)}"
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def bars(entries: Sequence[tuple[str, int]]) -> str:
    """Returns horizontal bars, a line for each entry."""
    most = max((number for _, number in entries), default=0) or 1
    lines = []
    for index, (name, number) in enumerate(entries):
        middle, length = index * _LINE + 13, (_WIDTH - _LABEL - 70) * number / most
        short = name if len(name) <= 26 else f"{name[:25]}…"
        label = f'<text x="{_LABEL - 8}" y="{middle}" text-anchor="end">{text(short)}</text>'
        bar = f'<rect class="bar" x="{_LABEL}" y="{middle - 11}" width="{length:.1f}" height="13" rx="2"/>'
        lines.append(f'{label}{bar}<text class="soft" x="{_LABEL + length + 6:.1f}" y="{middle}">{number:,}</text>')
    return _svg(_WIDTH, len(entries) * _LINE + 4, lines)


def histogram(values: npt.NDArray[np.int64], unit: str) -> str:
    """Returns how many of the values, all at least 0, lie in each of some ranges of equal length."""
    counts, edges = np.histogram(values, bins=_BINS)
    return _columns(counts, f"{edges[0]:,.0f} {unit}", f"{edges[-1]:,.0f} {unit}")


def columns(values: npt.NDArray[np.int64]) -> str:
    """Returns a column for each value; neighbours share one, of their mean, if there are many."""
    shown = np.array([part.mean() for part in np.array_split(values, min(len(values), 120))])
    return _columns(shown, "first", "last")


def _columns(values: npt.NDArray[np.generic], low: str, high: str) -> str:
    height, width = 110, 420
    numbers = values.astype(np.float64)
    step, most = width / len(numbers), numbers.max() or 1.0
    parts = [
        f'<rect class="bar" x="{index * step:.1f}" y="{16 + height * (1 - number / most):.1f}" '
        f'width="{max(0.5, step * 0.86):.1f}" height="{height * number / most:.1f}"/>'
        for index, number in enumerate(numbers.tolist())
    ]
    parts.append(f'<line class="axis" x1="0" x2="{width}" y1="{height + 16}" y2="{height + 16}"/>')
    parts.append(f'<text class="soft" x="0" y="10">{most:,.0f}</text><text x="0" y="{height + 32}">{text(low)}</text>')
    parts.append(f'<text x="{width}" y="{height + 32}" text-anchor="end">{text(high)}</text>')
    return _svg(width, height + 38, parts)


def shapes(sizes: npt.NDArray[np.int64]) -> str:
    """Returns a chart of widths and heights: squares, darker for more images.

    Args:
        sizes: height and width; int64 of shape (n, 2).
    """
    side, tall, wide = 300, int(sizes[:, 0].max()), int(sizes[:, 1].max())
    counts, _, _ = np.histogram2d(sizes[:, 1], sizes[:, 0], bins=_BINS, range=((0, wide + 1), (0, tall + 1)))
    step, most = side / _BINS, counts.max()
    parts = [f'<path class="axis" fill="none" d="M40 10V{side + 10}H{side + 40}"/>']
    for x, y in np.argwhere(counts).tolist():
        left, top = 40 + x * step, 10 + side - (y + 1) * step
        strength = 0.25 + 0.75 * float(np.log1p(counts[x, y]) / np.log1p(most))
        square = f'x="{left:.1f}" y="{top:.1f}" width="{step:.1f}" height="{step:.1f}"'
        parts.append(f'<rect class="bar" opacity="{strength:.2f}" {square}/>')
    parts.append(
        f'<text x="34" y="18" text-anchor="end">{tall}</text><text x="34" y="{side + 10}" text-anchor="end">0</text>'
    )
    parts.append(f'<text x="{side + 40}" y="{side + 26}" text-anchor="end">{wide}</text>')
    parts.append(f'<text class="soft" x="44" y="{side + 26}">width (pixels) →</text>')
    parts.append('<text class="soft" x="46" y="18">↑ height</text>')
    return _svg(side + 44, side + 32, parts)


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    view = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {view}>{"".join(parts)}</svg>'


def inline(
    numbers: Iterable[int], open_image: Callable[[int], Image.Image | None], most_bytes: int
) -> Mapping[int, str]:
    """Returns the data URLs of small versions of images, by number; those that do not fit are left out.

    Args:
        numbers: the images, the most important first.
        open_image: returns an image, None if it cannot be decoded.
        most_bytes: of all data URLs together.
    """
    images = {number: image for number in dict.fromkeys(numbers) if (image := _small(open_image(number)))}
    for quality in _QUALITIES:
        jpegs = {number: encoded(image, "JPEG", quality=quality, optimize=True) for number, image in images.items()}
        urls = {each: f"data:image/jpeg;base64,{b64encode(jpeg).decode()}" for each, jpeg in jpegs.items()}
        if sum(map(len, urls.values())) <= most_bytes:
            return urls
    kept: dict[int, str] = {}
    for number, url in urls.items():
        most_bytes -= len(url)
        if most_bytes >= 0:
            kept[number] = url
    return kept


def _small(image: Image.Image | None) -> Image.Image | None:
    if image is not None:
        image.thumbnail((_SIDE, _SIDE))
    return image


def image_tag(url: str | None, title: str) -> str:
    """Returns an image with a title that appears when one points to it; "" without an image."""
    return f'<img src="{url}" title="{text(title)}" alt="{text(title)}">' if url else ""
