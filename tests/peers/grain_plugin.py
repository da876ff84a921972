"""For pytest in a process with grain: its tests' `RangeDataSource` reads numbers that dlio has packed.

python -m pytest -p tests.peers.grain_plugin --pyargs grain._src.python.data_loader_test
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from absl import flags

import dlio
from dlio.loaders.dataset import PackedSamples


@dataclass(frozen=True)
class RangeDataSource:
    """Numbers, as grain's class of this name: a RandomAccessDataSource, which is pickled to workers."""

    start: int
    stop: int
    step: int

    def __len__(self) -> int:
        return len(packed(self))

    def __getitem__(self, index: int) -> int:
        return int(packed(self).read([index])[0].fields["number"])


@cache
def packed(numbers: RangeDataSource) -> PackedSamples:
    """Returns the samples, which each process opens for itself."""
    folder = Path(Path.cwd(), f"numbers-{numbers.start}-{numbers.stop}-{numbers.step}")
    if not (folder / "manifest.jsonl").exists():
        with dlio.Writer(folder, format="recordio") as writer:
            for number in range(numbers.start, numbers.stop, numbers.step):
                writer.write({"number": number})
    return PackedSamples(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replaces grain's source in the modules of the tests; parses no flags, as pytest's are not grain's."""
    flags.FLAGS.mark_as_parsed()
    modules = {item.module for item in items}  # type: ignore[attr-defined]
    assert all(hasattr(module, "RangeDataSource") for module in modules)
    for module in modules:
        module.RangeDataSource = RangeDataSource
