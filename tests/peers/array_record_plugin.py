"""For pytest in a process with array_record: its data source reads, by dlio, files that its own writer made.

Its tests import its modules from a package called `python`, and read digits in `testdata` next to them. Here each
digit is in an Example, since dlio's samples are, and `dlio index` has found them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_record.python as package
import pytest
from absl import flags
from array_record.python import array_record_data_source

from dlio.dataset.manifest import Manifest
from dlio.loaders.dataset import PackedSamples

sys.modules["python"] = package
opened: list[Path] = []


class ArrayRecordReader:
    """What the data source needs of array_record's class of this name."""

    def __init__(self, path: Any, *_: Any, **__: Any) -> None:
        path = Path(path)
        self._samples = PackedSamples(path.parent)
        counts = [shard.num_samples for shard in Manifest.load(path.parent).shards]
        number = next(
            n for n, shard in enumerate(Manifest.load(path.parent).shards) if path in shard_files(path, shard)
        )
        self._first, self._count = sum(counts[:number]), counts[number]
        opened.append(path)

    def num_records(self) -> int:
        return self._count

    def writer_options_string(self) -> str:
        return ""

    def read(self, positions: Sequence[int]) -> list[bytes]:
        assert all(0 <= position < self._count for position in positions)
        read = self._samples.read([self._first + position for position in positions])
        return [bytes(sample.fields["digit"]) for sample in read]

    def close(self) -> None:
        """Leaves it to the garbage collector, as loaders do."""


def shard_files(path: Path, shard: Any) -> list[Path]:
    """Returns the files of a shard."""
    return [path.parent / file.name for file in shard.files]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replaces the reader; parses no flags, as pytest's are not absl's."""
    flags.FLAGS.mark_as_parsed()
    array_record_data_source.array_record_module = SimpleNamespace(ArrayRecordReader=ArrayRecordReader)


def pytest_sessionfinish() -> None:
    """Prints how often dlio opened a file."""
    sys.stdout.write(f"\ndlio opened {len(opened)} files\n")
