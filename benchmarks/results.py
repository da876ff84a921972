"""What a run of a benchmark found, as a file: its tables, and the machine, versions and load that made them."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_OF_A_TABLE = re.compile(r"^\|.*\|$")
_RULE = re.compile(r"^\|[-| :]+\|$")
_PACKAGES = [
    *(
        "dlio-toolkit",
        "array-record",
        "dlio-benchmark",
        "grain",
        "h5py",
        "jax",
        "lmdb",
        "litdata",
        "mosaicml-streaming",
    ),
    *("numpy", "nvidia-dali-cuda120", "pillow", "pyarrow", "tensorflow", "torch", "webdataset"),
]


@dataclass(frozen=True, slots=True)
class Table:
    """A table, cell by cell, as the benchmark printed it.

    Attributes:
        title: the heading above it; empty without one.
        head: names of the columns.
        rows: a text for each column.
    """

    title: str
    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Returns the table's lines."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        rule = "|" + "---|" * len(self.head)
        made = ["| " + " | ".join(cells) + " |" for cells in lines]
        made[1] = rule
        return "\n".join(re.sub(r" +\|", " |", line) for line in made)


@dataclass(frozen=True, slots=True)
class Result:
    """A run.

    Attributes:
        name: of the benchmark.
        date: as 2026-11-24.
        words: its options.
        machine: what it ran on, `versions` of packages, and `load` before and after; or one text, of earlier runs.
        tables: all that it printed.
        text: its other lines.
    """

    name: str
    date: str
    words: list[str]
    machine: Mapping[str, Any]
    tables: list[Table]
    text: list[str]

    @classmethod
    def of(cls, name: str, words: Sequence[str], printed: str, machine: Mapping[str, Any]) -> Result:
        """Returns the result of a run that printed Markdown today."""
        tables, text = parsed(printed)
        return cls(name, f"{datetime.now(UTC):%Y-%m-%d}", list(words), machine, tables, text)

    @classmethod
    def read(cls, path: Path) -> Result:
        """Returns the result that a file holds."""
        found = json.loads(path.read_text())
        return cls(**found | {"tables": [Table(**table) for table in found["tables"]]})

    def write(self, folder: Path) -> Path:
        """Writes NAME-DATE.json, or NAME-DATE-2.json if there is one, and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        number, path = 1, folder / f"{self.name}-{self.date}.json"
        while path.exists():
            number += 1
            path = folder / f"{self.name}-{self.date}-{number}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        return path


def parsed(printed: str) -> tuple[list[Table], list[str]]:
    """Returns the tables of a Markdown text, each with the last heading above it, and all other lines."""
    tables: list[Table] = []
    text: list[str] = []
    title, is_open = "", False
    for line in map(str.strip, printed.splitlines()):
        if not _OF_A_TABLE.match(line):
            title = line.lstrip("# ") if line.startswith("#") else title
            text += [line] if line and not line.startswith("#") else []
            is_open = False
        elif not _RULE.match(line):
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            if is_open:
                tables[-1].rows.append(cells)
            else:
                tables.append(Table(title, cells, []))
                is_open = True
    return tables, text


@contextmanager
def recorded() -> Iterator[Callable[[], dict[str, Any]]]:
    """Yields a function that describes the machine, with its load at the start of the block and when it is called."""
    start = os.getloadavg()
    yield lambda: _machine() | {"load": [round(each, 1) for each in (start[0], os.getloadavg()[0])]}


def _machine() -> dict[str, Any]:
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> str:
    """Returns the version of a package of this environment, or of the peers in it (see tools/setup.sh)."""
    path = [*sys.path, str(Path(sys.prefix, "peers"))]
    return next((found.version for found in metadata.distributions(name=name, path=path)), "")
