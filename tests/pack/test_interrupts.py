"""An interrupt at any line leaves nothing unfinished behind, and the run continues."""

from __future__ import annotations

import pytest

import dlio
from dlio.executors import serial
from dlio.pack import write, write_samples
from dlio.pack.write import ASIDE
from tests.helpers.images import make_image_folder
from tests.helpers.interrupts import interrupt_at_each_line


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """An interrupt of the end itself leaves threads, which the interpreter ends when it exits."""


def test_an_interrupt_at_any_line_leaves_nothing_aside(tmp_path):
    make_image_folder(tmp_path / "in", {"a": 2})
    runs = 0

    def pack() -> None:
        nonlocal runs
        runs += 1
        out = tmp_path / str(runs)
        try:
            dlio.pack(dlio.sources.image_folder(tmp_path / "in"), out, engine="serial", num_shards=1)
        finally:
            assert not (out / ASIDE).exists()

    assert interrupt_at_each_line(pack, {serial.__file__, write.__file__, write_samples.__file__}) > 50
    for number in range(1, runs + 1):
        out = tmp_path / str(number)
        assert (
            dlio.pack(dlio.sources.image_folder(tmp_path / "in"), out, engine="serial", num_shards=1).num_samples == 2
        )
