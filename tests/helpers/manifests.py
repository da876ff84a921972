"""Manifests changed by hand: by a hostile writer, to those of dlio 0.1, and to what a killed run leaves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dlio.dataset import seal
from dlio.dataset.manifest import NAME, PARTIAL_NAME


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a manifest except for the last, its digest line."""
    return path.read_text().splitlines()[:-1]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a manifest, with a digest line that fits."""
    path.write_bytes(seal.sealed("".join(f"{line}\n" for line in lines).encode()))


def replace_text(path: Path, old: str, new: str) -> None:
    """Replaces text in a manifest, and its digest line by one that fits."""
    lines = "\n".join(lines_of(path))
    assert old in lines
    write_lines(path, lines.replace(old, new, 1).split("\n"))


def as_version_1(path: Path) -> Path:
    """Makes a manifest what dlio 0.1 would have written, and returns its path."""
    text = "".join(f"{line}\n" for line in lines_of(path))
    path.write_text(text.replace('{"dlio":2,', '{"dlio":1,', 1))
    return path


def unpublish(out: Path, most: int | None = None) -> Path:
    """Makes the manifest of a data set that of an unfinished pack, with at most this many shards; returns its path."""
    head, *shards = (seal.sealed(f"{line}\n".encode()) for line in lines_of(out / NAME))
    partial = out / PARTIAL_NAME
    partial.write_bytes(b"".join([head, *shards[:most]]))
    (out / NAME).unlink()
    return partial
