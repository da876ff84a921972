"""`repair` copies damaged files of a staged copy again from its source, or leaves them unchanged."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError, UsageError
from dlio.locking.claim import claimed
from dlio.stage.copies.node_cache import is_being_filled, remove_unused
from dlio.stage.engine import fill, writing
from dlio.stage.engine.store import Store
from dlio.stage.sources import MountedFolder
from dlio.stage.upkeep import repair as repair_module
from dlio.stage.upkeep.repair import manifest_of, origin_of, repair, staged_copy
from tests.helpers.damage import DAMAGES, assert_whole
from tests.helpers.forked import Forked, wait_for
from tests.helpers.staging import MiB, damaged_files, flip, folder_of, write_dataset

pytestmark = pytest.mark.usefixtures("job_7")


def test_a_source_that_hangs_is_named_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, over = write_dataset(tmp_path / "source", [5000, 700]), threading.Event()
    staged, file = dlio.stage(source, tmp_path / "local"), source.shards[0].files[0]
    flip(staged.root / file.name)
    monkeypatch.setattr(MountedFolder, "read_range", lambda *_: over.wait(60))
    monkeypatch.setattr(repair_module, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(fill, "GIVE_UP_SECONDS", 0.1)
    done = repair(folder_of(staged), source, [file.name], MountedFolder(source))
    over.set()
    assert "has sent nothing for" in done.not_repaired[file.name] and str(source.root) in done.not_repaired[file.name]
    assert damaged_files(staged.root, source) == [file.name]


def test_a_copys_folder_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [5000, 700], stem="deep/below/part")
    staged = dlio.stage(source, tmp_path / "local")
    (staged.root / "deep" / "below").rename(tmp_path / "elsewhere")
    (staged.root / "deep" / "below").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "part-00001.bin").write_text("thesis")
    names = [file.name for shard in source.shards for file in shard.files]
    done = repair(folder_of(staged), source, names, MountedFolder(source))
    assert done.repaired == []
    assert sorted(done.not_repaired) == names
    assert (tmp_path / "elsewhere" / "part-00001.bin").read_text() == "thesis"
    (staged.root / "deep" / "below").unlink()
    assert repair(folder_of(staged), source, names, MountedFolder(source)).repaired == names
    assert_whole(staged, source)


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_of_any_kind_is_replaced_and_not_followed(dataset: Manifest, tmp_path: Path, damage: str) -> None:
    staged, file = dlio.stage(dataset, tmp_path / "local"), dataset.shards[4].files[0]
    DAMAGES[damage](staged.root / file.name)
    done = repair(folder_of(staged), dataset, [file.name], origin_of(folder_of(staged)))
    assert (done.repaired, done.not_repaired) == ([file.name], {})
    assert_whole(staged, dataset)


def test_a_file_that_is_not_of_the_owner_is_replaced(dataset: Manifest, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("gives a file to another user")
    staged, name = dlio.stage(dataset, tmp_path / "local"), dataset.shards[4].files[0].name
    os.chown(staged.root / name, 2001, 2001)
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
    assert (staged.root / name).stat().st_uid == 0


def test_a_reader_keeps_the_file_that_it_has_open(dataset: Manifest, tmp_path: Path) -> None:
    staged, name = dlio.stage(dataset, tmp_path / "local"), dataset.shards[4].files[0].name
    flip(staged.root / name)
    before = (staged.root / name).read_bytes()
    with (staged.root / name).open("rb") as reader:
        first = reader.read(MiB)
        assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
        assert first + reader.read() == before
    assert damaged_files(staged.root, dataset) == []


def damaged_copy(dataset: Manifest, local: Path) -> tuple[Manifest, str, bytes]:
    """Returns a copy, the name of its damaged file, and the bytes of that."""
    staged, name = dlio.stage(dataset, local), dataset.shards[4].files[0].name
    flip(staged.root / name)
    return staged, name, (staged.root / name).read_bytes()


def hang_after_the_first_block(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a repair stop in the middle of a file, until it is killed or interrupted."""

    def hang(*_: object, **__: object) -> None:
        ready.touch()
        time.sleep(1000)

    monkeypatch.setattr(Store, "write", hang)


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_repair_leaves_no_partial_file(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_signal: signal.Signals
) -> None:
    staged, name, before = damaged_copy(dataset, tmp_path / "local")

    def half() -> None:
        def interrupted(*_: object, **__: object) -> None:
            os.kill(os.getpid(), with_signal)
            threading.Event().wait(60)  # the interrupt reaches the main thread

        monkeypatch.setattr(writing, "is_hole", interrupted)
        repair(folder_of(staged), dataset, [name], MountedFolder(dataset))

    assert Forked(half).wait() != 0
    assert (staged.root / name).read_bytes() == before
    assert list((staged.root / ".dlio/live").rglob("*.bin"))
    assert not is_being_filled(folder_of(staged))
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
    assert_whole(staged, dataset)


def test_a_second_repair_is_refused_and_the_copy_not_evicted(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, name, before = damaged_copy(dataset, tmp_path / "local")
    dlio.clean(tmp_path / "local", keep=True)
    hang_after_the_first_block(tmp_path / "ready", monkeypatch)
    other = Forked(lambda: repair(folder_of(staged), dataset, [name], MountedFolder(dataset)))
    wait_for(tmp_path / "ready")
    with pytest.raises(StorageError, match="by another process"):
        repair(folder_of(staged), dataset, [name], MountedFolder(dataset))
    assert not remove_unused(folder_of(staged))
    assert (staged.root / name).read_bytes() == before
    other.kill()
    monkeypatch.undo()
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]


def test_files_repaired_by_another_process_are_not_copied_again(dataset: Manifest, tmp_path: Path) -> None:
    staged, name, _ = damaged_copy(dataset, tmp_path / "local")
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
    number = (staged.root / name).stat().st_ino
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == []
    assert (staged.root / name).stat().st_ino == number


def test_a_copy_that_is_busy_or_gone_is_not_repaired(dataset: Manifest, tmp_path: Path) -> None:
    staged, name, _ = damaged_copy(dataset, tmp_path / "local")
    folder = folder_of(staged)
    with claimed(folder.claims, lambda: False), pytest.raises(StorageError, match="being staged or repaired"):
        repair(folder, dataset, [name], MountedFolder(dataset))
    shutil.rmtree(staged.root)
    with pytest.raises(StorageError, match="No such file"):
        repair(folder, dataset, [name], MountedFolder(dataset))
    assert not staged.root.exists()


def test_a_full_disk_keeps_the_damaged_file(large_dataset: Manifest, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=24m")
    staged, name, before = damaged_copy(large_dataset, disk)
    done = repair(folder_of(staged), large_dataset, [name], MountedFolder(large_dataset))
    assert "are needed" in done.not_repaired[name]
    assert (staged.root / name).read_bytes() == before
    assert not (staged.root / ".dlio/live").exists()


def test_only_a_staged_copys_folder_counts_as_one(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    (tmp_path / "link").symlink_to(staged.root)
    assert staged_copy(staged.root) == staged_copy(tmp_path / "link") == folder_of(staged)
    assert staged_copy(dataset.root) is None
    assert manifest_of(folder_of(staged)) == (dataset, "")
    other = write_dataset(tmp_path / "other", [5], seed=1)
    with pytest.raises(UsageError, match="another data set"):
        origin_of(folder_of(staged), str(other.root))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_copy_in_another_users_folder_is_left_alone(dataset: Manifest, tmp_path: Path) -> None:
    staged, name, before = damaged_copy(dataset, tmp_path / "local")
    os.chown(tmp_path / "local" / "dlio", 2001, 2001)
    with pytest.raises(StorageError, match="can be replaced by another user"):
        repair(folder_of(staged), dataset, [name], MountedFolder(dataset))
    assert (staged.root / name).read_bytes() == before
