"""What every staging strategy promises to one node: a verified copy, one read of the source, runs that continue."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, File, Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.dataset.shard import files_of
from dlio.errors import DigestError, StorageError, UsageError
from dlio.io.files import digest_bytes, digest_file
from dlio.testing.container import content

Stage = Callable[[], tuple[Manifest, int]]

SIZES = [0, 1, (5 << 20) + 3, 4 << 20, (2 << 20) - 1, 7]  # of the shards' files, in bytes


def write_dataset(
    root: Path, sizes: list[int], *, stem: str = "shard", seed: int = 0, digest: str = "xxh3-128"
) -> Manifest:
    """Returns the saved manifest of shards of random bytes, one file of each size."""
    root.mkdir(parents=True, exist_ok=True)
    chance, shards = np.random.default_rng(seed), list[Shard]()
    for number, size in enumerate(sizes):
        path = root / f"{stem}-{number:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        words = chance.integers(0, 1 << 64, -(-size // 8), dtype=np.uint64)  # ten times as fast as random.randbytes
        path.write_bytes(data := words.tobytes()[:size])
        file = File(str(path.relative_to(root)), size, digest_bytes(data, digest))
        shards.append(Shard(path.stem, min(1, size), (file,)))
    manifest = Manifest("tfrecord", Schema.of({"image": "bytes"}), tuple(shards), {}, root)
    manifest.save(root)
    return manifest


class StrategyTests:
    """The promises of a staging strategy; a subclass names its module in `strategy`, and may give `dest`."""

    strategy = ""

    @pytest.fixture(name="strategy")
    def _strategy(self) -> str:
        return self.strategy

    @pytest.fixture
    def dest(self, tmp_path: Path) -> Path:
        """An empty folder of a kind that the strategy stages to."""
        (tmp_path / "local").mkdir()
        return tmp_path / "local"

    @pytest.fixture
    def dataset(self, tmp_path: Path) -> Manifest:
        """Six shards of 11 MiB, empty and odd-sized ones among them."""
        return write_dataset(tmp_path / "source", SIZES)

    @pytest.fixture(autouse=True)
    def _no_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DLIO_LAUNCHER", "single")

    @pytest.fixture
    def stage(self, strategy: str, dataset: Manifest, dest: Path) -> Stage:
        """Stages the data set; returns the staged manifest and the bytes that were written."""

        def stage() -> tuple[Manifest, int]:
            written: list[int] = []
            staged = dlio.stage(dataset, dest, strategy=strategy, report=written.append)
            return staged, sum(written)

        return stage

    def test_every_byte_arrives_once_and_is_not_copied_again(self, stage: Stage, dataset: Manifest, dest: Path) -> None:
        staged, written = stage()
        assert_whole(staged, dataset)
        assert staged.root.is_relative_to(dest)
        assert written == dataset.num_bytes
        again, written = stage()
        assert (again, again.root, written) == (staged, staged.root, 0)

    def test_a_dry_run_says_what_is_done(
        self, stage: Stage, strategy: str, dataset: Manifest, dest: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["stage", str(dataset.root), str(dest), "--strategy", strategy, "--dry-run", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert content(dest) == {}
        staged, _ = stage()
        assert (said["strategy"], said["path"], said["content_id"]) == (strategy, str(staged.root), dataset.content_id)
        assert said["source_bytes"] == dataset.num_bytes
        assert said["seconds"] >= 0
        assert said["why"]

    def test_a_missing_file_is_brought_back_alone(self, stage: Stage, dataset: Manifest) -> None:
        staged, _ = stage()
        (staged.root / dataset.shards[2].files[0].name).unlink()
        staged, written = stage()
        assert written == dataset.shards[2].num_bytes
        assert_whole(staged, dataset)

    def test_a_damaged_source_gives_no_copy(self, stage: Stage, dataset: Manifest, dest: Path) -> None:
        damaged = dataset.root / "shard-00002.bin"
        damaged.write_bytes(bytes(damaged.stat().st_size))
        with pytest.raises((DigestError, StorageError), match=r"shard-00002.bin is damaged.*: expected the digest"):
            stage()
        assert not names_below(dest) & {NAME, damaged.name}

    @pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"short")], ids=["missing", "cut"])
    def test_a_source_that_lacks_bytes_is_named(
        self, stage: Stage, damage: Callable[[Path], object], dataset: Manifest, dest: Path
    ) -> None:
        damage(dataset.root / "shard-00003.bin")
        with pytest.raises(StorageError, match=r"shard-00003\.bin"):
            stage()
        assert NAME not in names_below(dest)

    def test_a_killed_run_goes_on(self, stage: Stage, strategy: str, dataset: Manifest, dest: Path) -> None:
        def die(num_bytes: int) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        options = {"strategy": strategy, "report": die}
        killed = get_context("fork").Process(target=dlio.stage, args=(dataset, dest), kwargs=options)
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        assert NAME not in names_below(dest)
        staged, _ = stage()
        assert_whole(staged, dataset)

    def test_modes_are_those_that_are_asked_for(self, strategy: str, dataset: Manifest, dest: Path) -> None:
        staged = dlio.stage(dataset, dest, strategy=strategy, mode=0o640)
        modes = {path.stat().st_mode & 0o777 for path in staged.root.glob("shard*")}
        assert modes == {0o640}

    def test_a_destination_in_the_data_set_itself_is_refused(self, strategy: str, dataset: Manifest) -> None:
        with pytest.raises(UsageError, match="is inside"):
            dlio.stage(dataset, dataset.root / "local", strategy=strategy)
        assert not (dataset.root / "local").exists()


def names_below(folder: Path) -> set[str]:
    """Returns the names of all files below a folder, without their folders, except for unfinished ones."""
    return {Path(name).name for name in content(folder) if "/live" not in name}


def assert_whole(staged: Manifest, source: Manifest) -> None:
    """The staged folder holds the manifest and every file as it is described, and what `.dlio` keeps."""
    assert staged.content_id == source.content_id == Manifest.load(staged.root).content_id
    assert [shard.name for shard in staged.shards] == [shard.name for shard in source.shards]
    files = files_of(source.shards)
    assert [digest_file(staged.root / file.name) for file in files] == [file.digest for file in files]
    found = {name for name in content(staged.root) if not name.startswith(".dlio/")}
    assert found == {NAME, *(file.name for file in files)}
