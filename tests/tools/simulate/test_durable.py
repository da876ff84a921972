"""The simulator's disks: what a loss of power may leave, and what it must."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.simulate.chance import Chance
from tools.simulate.durable import PAGE_BYTES, SECTOR_BYTES, Durable

OLD, NEW = b"o" * 3 * PAGE_BYTES, b"n" * 3 * PAGE_BYTES
SEEDS = range(60)


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(durable: Durable, path: Path) -> None:
    with opened(path) as descriptor:
        durable.synced(descriptor)


def rename(durable: Durable, source: Path, target: Path) -> None:
    durable.replaces(str(source), str(target))
    source.replace(target)


def kept(root: Path, durable: Durable) -> None:
    """Makes a folder with a file, and waits until they are on the disk."""
    (root / "inner").mkdir()
    (root / "inner" / "new").write_bytes(NEW)
    for path in (root / "inner" / "new", root / "inner", root):
        sync(durable, path)


def left_by(tmp_path: Path, write: Callable[[Path, Durable], None]) -> Iterator[dict[str, bytes]]:
    """Yields what is left for each seed, after a folder with the durable file `old` was written to."""
    for seed in SEEDS:
        root = tmp_path / str(seed)
        root.mkdir()
        (root / "old").write_bytes(OLD)
        durable = Durable(root)
        write(root, durable)
        durable.lose_power(Chance(seed, "power"))
        yield {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        durable.close()


def test_what_was_there_before_survives(tmp_path):
    assert all(left == {"old": OLD} for left in left_by(tmp_path, lambda root, durable: None))


def test_a_file_whose_data_and_name_were_synced_survives(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "new").write_bytes(NEW)
        sync(durable, root / "new")
        sync(durable, root)

    assert all(left == {"old": OLD, "new": NEW} for left in left_by(tmp_path, write))


def test_a_file_whose_name_was_not_synced_survives_or_not_but_never_with_other_data(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "new").write_bytes(NEW)
        sync(durable, root / "new")

    assert {left.get("new") for left in left_by(tmp_path, write)} == {None, NEW}


def test_a_rename_before_the_data_can_leave_an_empty_file(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "aside").write_bytes(NEW)
        rename(durable, root / "aside", root / "old")

    found = {left.get("old") for left in left_by(tmp_path, write)}
    assert {b"", OLD} <= found
    assert None not in found, "a rename that replaces a file is atomic"


def test_a_rename_after_a_sync_leaves_the_old_file_or_the_new_one(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "aside").write_bytes(NEW)
        sync(durable, root / "aside")
        rename(durable, root / "aside", root / "old")

    assert {left["old"] for left in left_by(tmp_path, write)} == {OLD, NEW}


def test_pages_survive_one_by_one_and_are_torn_between_sectors(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "old").write_bytes(NEW)

    found = {left["old"] for left in left_by(tmp_path, write)}
    assert {OLD, NEW} <= found
    mixed = [data for data in found if len({data[page * PAGE_BYTES] for page in range(3)}) > 1]
    torn = [data for data in found if len(set(data[:PAGE_BYTES])) > 1]
    assert mixed
    assert torn
    sectors = [data[at : at + SECTOR_BYTES] for data in found for at in range(0, len(data), SECTOR_BYTES)]
    assert all(len(set(sector)) == 1 for sector in sectors)


def test_pages_of_a_failed_sync_are_not_made_durable_by_the_next(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        with opened(root / "old", os.O_WRONLY) as descriptor:
            os.pwrite(descriptor, NEW, 0)
            durable.failed(descriptor)
            os.pwrite(descriptor, NEW[:PAGE_BYTES], 0)
            durable.written(descriptor, 0, PAGE_BYTES)
            durable.synced(descriptor)

    found = {left["old"] for left in left_by(tmp_path, write)}
    assert NEW[:PAGE_BYTES] + OLD[PAGE_BYTES:] in found
    assert {data[:PAGE_BYTES] for data in found} == {NEW[:PAGE_BYTES]}


def test_a_removed_file_comes_back_unless_its_folder_was_synced(tmp_path):
    assert {left.get("old") for left in left_by(tmp_path, lambda root, durable: (root / "old").unlink())} == {None, OLD}


def test_a_removal_that_was_synced_is_final(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "old").unlink()
        sync(durable, root)

    assert all(left == {} for left in left_by(tmp_path, write))


def test_a_file_moved_to_a_synced_folder_is_there_and_nowhere_else(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "inner").mkdir()
        sync(durable, root)
        rename(durable, root / "old", root / "inner" / "old")
        sync(durable, root / "inner")

    assert all(left == {"inner/old": OLD} for left in left_by(tmp_path, write))


def test_a_folder_that_was_not_synced_takes_with_it_what_it_holds(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        (root / "inner").mkdir()
        (root / "inner" / "new").write_bytes(NEW)
        sync(durable, root / "inner" / "new")
        sync(durable, root / "inner")

    assert {left.get("inner/new") for left in left_by(tmp_path, write)} == {None, NEW}


def test_a_renamed_folder_is_at_its_old_name_or_its_new_one_with_all_that_it_holds(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        kept(root, durable)
        rename(durable, root / "inner", root / "moved")

    found = [{*left} for left in left_by(tmp_path, write)]
    assert all(left in ({"old", "inner/new"}, {"old", "moved/new"}) for left in found)
    assert {"old", "inner/new"} in found and {"old", "moved/new"} in found


def test_a_removal_from_a_renamed_folder_that_was_synced_is_final(tmp_path):
    """Even if a folder of its old name is made again."""

    def write(root: Path, durable: Durable) -> None:
        kept(root, durable)
        rename(durable, root / "inner", root / "moved")
        (root / "moved" / "new").unlink()
        sync(durable, root / "moved")
        (root / "moved").rmdir()
        (root / "inner").mkdir()

    assert all(left == {"old": OLD} for left in left_by(tmp_path, write))


def test_what_a_renamed_folder_held_goes_with_it(tmp_path):
    def write(root: Path, durable: Durable) -> None:
        kept(root, durable)
        rename(durable, root / "inner", root / "moved")
        (root / "inner").mkdir()
        (root / "inner" / "later").write_bytes(NEW)
        sync(durable, root / "inner" / "later")
        sync(durable, root / "inner")
        sync(durable, root)
        (root / "moved" / "new").unlink()
        (root / "moved").rmdir()
        sync(durable, root)

    assert all(left == {"old": OLD, "inner/later": NEW} for left in left_by(tmp_path, write))


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_is_the_same_for_the_same_seed(tmp_path, seed):
    found = []
    for attempt in ("first", "second"):
        root = tmp_path / attempt
        root.mkdir()
        durable = Durable(root)
        for name in ("a", "b", "c"):
            (root / name).write_bytes(NEW)
        sync(durable, root / "a")
        durable.lose_power(Chance(seed, "power"))
        durable.close()
        found.append({path.name: path.read_bytes() for path in root.iterdir()})
    assert found[0] == found[1]
