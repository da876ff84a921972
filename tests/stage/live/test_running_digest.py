"""A digest that continues while pieces come: in any order, with few of them in memory, and never of other bytes."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlio.errors import DigestError
from dlio.io import files
from dlio.stage.copies.blocks import BLOCK_BYTES, Blocks
from dlio.stage.engine import running_digest
from dlio.stage.engine.running_digest import Held, RunningDigest

PIECES = 12
CONTENT = random.Random(9).randbytes(PIECES * BLOCK_BYTES - 5)
STARTS = range(0, len(CONTENT), BLOCK_BYTES)


class Arriving:
    """A file that arrives in pieces of one block."""

    def __init__(self, folder: Path, *, is_hurried: bool = True) -> None:
        self.path = folder / "file"
        self.path.write_bytes(bytes(len(CONTENT)))
        self.blocks = Blocks.create(folder / "bits", len(CONTENT))
        self.digest = RunningDigest(self.path, self.blocks, "xxh3-128", Held(is_hurried=is_hurried))
        self.released = list[int]()

    def add(self, begin: int) -> None:
        """Writes a piece, and adds it."""
        data = memoryview(CONTENT)[begin : begin + BLOCK_BYTES]
        with self.digest.writing(begin, is_cached=True), self.path.open("r+b") as file:
            file.seek(begin)
            file.write(data)
            self.blocks.set(begin, begin + len(data))
        self.digest.add(begin, data, partial(self.released.append, begin))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(order=st.permutations(STARTS), gap=st.sampled_from([0, BLOCK_BYTES, 1 << 30]), is_hurried=st.booleans())
def test_pieces_in_any_order_give_the_files_digest(
    tmp_path: Path, order: list[int], gap: int, is_hurried: bool
) -> None:
    file = Arriving(tmp_path, is_hurried=is_hurried)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_digest, "_MOST_GAP", gap)
        for begin in order:
            file.add(begin)
        assert file.digest.whole() == files.digest_bytes(CONTENT)
    assert sorted(file.released) == sorted(order)


def test_pieces_that_are_held_are_not_read_again(tmp_path: Path) -> None:
    file = Arriving(tmp_path)
    for begin in (2 * BLOCK_BYTES, BLOCK_BYTES):
        file.add(begin)
    assert file.released == []
    file.path.write_bytes(bytes(len(CONTENT)))
    for begin in (0, *STARTS[3:]):
        file.add(begin)
    assert file.digest.whole() == files.digest_bytes(CONTENT)


def test_nothing_is_read_again_while_readers_wait_for_pieces(tmp_path: Path) -> None:
    file = Arriving(tmp_path, is_hurried=False)
    for begin in STARTS[1:-1]:
        file.add(begin)
    file.path.write_bytes(bytes(len(CONTENT)))  # what is read now is found to be damaged
    for begin in (0, STARTS[-1]):
        file.add(begin)
    file.path.write_bytes(CONTENT)
    assert file.digest.whole() == files.digest_bytes(CONTENT)


def test_only_few_pieces_that_came_too_early_are_held(tmp_path: Path) -> None:
    file = Arriving(tmp_path)
    for begin in STARTS[1:]:
        file.add(begin)
    assert len(STARTS) - 1 - len(file.released) == running_digest._FEW_HELD
    file.digest.end()
    assert sorted(file.released) == [*STARTS[1:]]


def test_a_piece_that_is_being_written_is_not_read_from_the_file(tmp_path: Path) -> None:
    """Its thread has it in memory, and adds it in a moment."""
    file, first = Arriving(tmp_path), memoryview(CONTENT)[:BLOCK_BYTES]
    with file.digest.writing(0, is_cached=True):
        file.blocks.set(0, BLOCK_BYTES)  # of which the file has nothing
    for begin in STARTS[1:4]:
        file.add(begin)
    assert file.released == []
    file.digest.add(0, first, partial(file.released.append, 0))
    assert sorted(file.released) == [*STARTS[:4]]
    for begin in STARTS[4:]:
        file.add(begin)
    assert file.digest.whole() == files.digest_bytes(CONTENT)


@pytest.mark.parametrize("gap", [BLOCK_BYTES // 2, 1 << 30])
def test_a_piece_that_the_disk_has_changed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: int
) -> None:
    """Else the changed bytes would count, and other nodes, which get them from this one, would have the same digest."""
    monkeypatch.setattr(running_digest, "_MOST_GAP", gap)
    file = Arriving(tmp_path)
    for begin in STARTS[1:]:
        file.add(begin)
    last = STARTS[-2]
    assert last in file.released
    with file.path.open("r+b") as changed:
        changed.seek(last + 17)
        changed.write(bytes([CONTENT[last + 17] ^ 1]))
    file.add(0)
    with pytest.raises(DigestError, match=f"bytes {last} to {last + BLOCK_BYTES} are not what was written there"):
        file.digest.whole()
