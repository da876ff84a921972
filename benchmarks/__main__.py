"""Runs a benchmark by its name: `python -m benchmarks NAME [its options] [--json]`.

With --json, what it prints is also kept in `benchmarks/results/NAME-DATE.json` (--json=FOLDER: there), with the
machine, the versions of packages and the load. `python -m tools.site.performance` makes the tables of
docs/performance.md of these files. NAME is a module of `benchmarks/`; `--help` after it shows its options, and no NAME
shows all.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import TextIO

from benchmarks.results import Result, recorded

FOLDER = Path(__file__).parent
_NO_BENCHMARKS = {"__main__", "images", "live_flood", "slow_source", "slow_mount"}  # what the others start or import


def names() -> list[str]:
    """Returns the names of all benchmarks."""
    modules = {path.stem for path in FOLDER.glob("*.py")} - _NO_BENCHMARKS - {"results"}
    return sorted(modules | {path.parent.name for path in FOLDER.glob("*/__main__.py")})


class _Copied:
    """A file for text that writes to two."""

    def __init__(self, first: TextIO) -> None:
        self.first, self.text = first, ""

    def write(self, text: str) -> int:
        """Writes to both."""
        self.text += text
        return self.first.write(text)

    def flush(self) -> None:
        """Flushes the first."""
        self.first.flush()


def main() -> None:
    """Runs the benchmark, as `python -m benchmarks.NAME` does."""
    name, *words = sys.argv[1:] or [""]
    if name not in names():
        listed = f"benchmarks: {', '.join(names())}"
        is_asked = name in ("", "-h", "--help")
        raise SystemExit(f"{__doc__}\n{listed}" if is_asked else f"there is no benchmark {name!r}; {listed}")
    folders = [FOLDER / "results" if word == "--json" else Path(word[7:]) for word in words if _is_json(word)]
    sys.path.insert(0, str(FOLDER))  # as for `python benchmarks/NAME.py`: they import their neighbours
    sys.argv = [name, *(word for word in words if not _is_json(word))]
    copied = _Copied(sys.stdout)
    with recorded() as machine, contextlib.redirect_stdout(copied):  # type: ignore[type-var]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    for folder in folders:
        path = Result.of(name, sys.argv[1:], copied.text, machine()).write(folder)
        print(f"kept in {path}", file=sys.stderr)


def _is_json(word: str) -> bool:
    return word == "--json" or word.startswith("--json=")


if __name__ == "__main__":
    main()
