"""`verify --staged`: all complete copies of a node are checked, and do not count as used."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError, StorageError
from dlio.locking.claim import claimed
from dlio.rights.as_owner import as_owner
from dlio.stage.copies.node_cache import copies
from dlio.stage.planning.homes import PIECE_BYTES
from dlio.stage.run import run
from dlio.stage.upkeep import at_rest
from dlio.stage.upkeep.at_rest import CopyAtRest, RateLimit
from dlio.stage.upkeep.scrub import Scrubbed, scrub
from tests.helpers.forked import Forked
from tests.helpers.staging import assert_staged, damaged_files, flip, folder_of, node, write_dataset
from tests.helpers.users import as_user, open_to_all

pytestmark = pytest.mark.usefixtures("job_7")
Command = Callable[..., subprocess.CompletedProcess[str]]


def three(tmp_path: Path) -> list[Manifest]:
    """Returns three small data sets."""
    return [write_dataset(tmp_path / f"source{seed}", [70_000, 0, 5], seed=seed) for seed in range(3)]


def states(dest: Path, *, mend: bool = False) -> dict[str, tuple[list[str], list[str], list[str]]]:
    """Returns what a scrub finds: by the copy's name what is damaged, repaired, and not repaired."""
    return {
        Path(found.path).name: (list(found.damaged), list(found.repaired), list(found.not_repaired))
        for found in scrub(dest, mend=mend)
    }


def test_every_copy_is_checked_and_the_damaged_one_is_mended(tmp_path: Path) -> None:
    sources = three(tmp_path)
    staged = [dlio.stage(source, tmp_path / "local") for source in sources]
    whole: tuple[list[str], list[str], list[str]] = ([], [], [])
    assert states(tmp_path / "local") == {source.content_id: whole for source in sources}
    flip(staged[1].root / "shard-00000.bin")
    (staged[1].root / "shard-00002.bin").unlink()
    names = ["shard-00000.bin", "shard-00002.bin"]
    assert states(tmp_path / "local")[sources[1].content_id] == (names, [], names)
    assert states(tmp_path / "local", mend=True)[sources[1].content_id] == (names, names, [])
    assert states(tmp_path / "local")[sources[1].content_id] == whole
    for copy, source in zip(staged, sources, strict=True):
        assert_staged(copy, source)


def test_nothing_makes_a_copy_look_used(tmp_path: Path) -> None:
    """Neither the times of its files nor the leases change; eviction follows the marker's time and the leases."""
    staged = [dlio.stage(source, tmp_path / "local") for source in three(tmp_path)]
    for number, copy in enumerate(reversed(staged)):
        os.utime(folder_of(copy).marker, (1, 10 + number))
        os.utime(copy.root / "shard-00000.bin", (1, 2))  # a read would renew the first, being the older
    flip(staged[0].root / "shard-00002.bin")
    order = copies(tmp_path / "local")
    leases = {path: path.stat().st_mtime_ns for path in (tmp_path / "local" / "dlio" / ".leases").rglob("*")}
    assert [found.is_whole for found in scrub(tmp_path / "local", mend=True)] == [True] * 3
    assert copies(tmp_path / "local") == order
    assert [folder.marker.stat().st_mtime for folder in order] == [10, 11, 12]
    assert [(copy.root / "shard-00000.bin").stat().st_atime for copy in staged] == [1, 1, 1]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "local" / "dlio" / ".leases").rglob("*")} == leases


def test_links_below_dest_are_not_followed(dataset: Manifest, tmp_path: Path) -> None:
    elsewhere = dlio.stage(dataset, tmp_path / "elsewhere")
    flip(elsewhere.root / "shard-00004.bin")
    local = tmp_path / "local"
    (local / "dlio").mkdir(parents=True)
    (local / "dlio" / dataset.content_id).symlink_to(elsewhere.root)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "dlio").symlink_to(tmp_path / "elsewhere" / "dlio")
    assert states(local, mend=True) == states(tmp_path / "linked", mend=True) == {}
    assert damaged_files(elsewhere.root, dataset) == ["shard-00004.bin"]


@pytest.mark.parametrize("kind", ["link", "FIFO", "device", "folder", "endless"])
def test_a_manifest_that_is_a_pipe_counts_as_damage(
    dataset: Manifest, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    path = staged.root / NAME
    path.unlink()
    if kind == "link":
        path.symlink_to(dataset.root / NAME)
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "endless":
        monkeypatch.setenv("DLIO_MAX_MANIFEST", "64KiB")
        path.write_bytes(b"{" * (1 << 17))
    else:
        path.mkdir()
    found = list(scrub(tmp_path / "local"))
    assert [copy.is_whole for copy in found] == [False]
    assert NAME in found[0].problem
    assert kind != "endless" or "has more than 65,536 bytes" in found[0].problem
    if kind != "folder":  # which no file can replace
        assert states(tmp_path / "local", mend=True) == {dataset.content_id: ([NAME], [NAME], [])}
        assert_staged(staged, dataset)


def test_incomplete_copies_are_skipped_and_busy_ones_reported(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    flip(staged.root / "shard-00004.bin")
    with claimed(folder_of(staged).claims, lambda: False):
        found = list(scrub(tmp_path / "local", mend=True))
    assert "by another process" in found[0].problem
    assert not found[0].is_whole
    (staged.root / NAME).unlink()
    assert list(scrub(tmp_path / "local", mend=True)) == []


def test_a_missing_source_is_reported_and_the_next_copy_repaired(tmp_path: Path) -> None:
    sources = three(tmp_path)[:2]
    for source in sources:
        flip(dlio.stage(source, tmp_path / "local").root / "shard-00000.bin")
    sources[0].root.rename(tmp_path / "away")
    found = {Path(copy.path).name: copy for copy in scrub(tmp_path / "local", mend=True)}
    assert f"{sources[0].root} does not exist: give a data set" in found[sources[0].content_id].problem
    assert found[sources[1].content_id].is_whole


def test_parts_are_copies_too(dataset: Manifest, tmp_path: Path) -> None:
    staged = run(dataset, tmp_path / "local", strategy="partition", topology=node(0, 2))[0]
    name = next(file.name for shard in staged.shards_here for file in shard.files if file.num_bytes > 700)
    flip(staged.root / name)
    assert states(tmp_path / "local", mend=True) == {staged.root.name: ([name], [name], [])}
    assert damaged_files(staged.root, dataset) == []


def test_without_o_direct_the_page_cache_is_used(dataset: Manifest, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=50m")
    staged = dlio.stage(dataset, disk)
    assert states(disk) == {dataset.content_id: ([], [], [])}
    flip(staged.root / "shard-00004.bin", -1)
    assert states(disk)[dataset.content_id][0] == ["shard-00004.bin"]


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_reading_stays_below_the_rate(large_dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """9 MiB in blocks of 4 at 1 MiB a second: the second waits 4 s, the third 4 s less the 3 that reading took."""
    staged, clock = dlio.stage(large_dataset, tmp_path / "local"), Clock()
    monkeypatch.setattr(at_rest, "time", clock)
    pace, preadv = RateLimit(PIECE_BYTES // 4), os.preadv

    def slow(descriptor: int, buffers: list[memoryview], position: int) -> int:
        if position == PIECE_BYTES:
            clock.now += 3
        return preadv(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", slow)
    with CopyAtRest(staged.root) as copy:
        assert copy.damage(large_dataset.shards[4].files[0], pace) is None
    assert clock.slept == [4.0, 1.0]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `dlio verify --staged` in its own process, whose priority falls."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        def child() -> None:
            code = cli.main(["verify", "--staged", *map(str, words)])
            sys.stdout.flush()
            os._exit(code)

        code = Forked(child).wait()
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run


def test_the_command_line(large_dataset: Manifest, tmp_path: Path, command: Command) -> None:
    local = tmp_path / "local"
    staged = dlio.stage(large_dataset, local)
    done = command(local)
    assert (done.returncode, done.stdout) == (0, f"{staged.root}: 7 files, 21.0 MB, whole\n")
    flip(staged.root / "shard-00004.bin")
    done = command(local, "--quiet")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"damaged: {staged.root}/shard-00004.bin: expected the digest" in done.stderr
    done = command(local, "--repair", "--max-rate", "1G")
    assert (done.returncode, done.stdout) == (0, f"{staged.root}: 7 files, 21.0 MB, 1 damaged, 1 repaired\n")
    done = command(local, "--json")
    assert [Scrubbed(**copy).is_whole for copy in json.loads(done.stdout)["copies"]] == [True]
    (tmp_path / "empty").mkdir()
    assert command(tmp_path / "empty").stdout.startswith("nothing was checked")
    done = command(tmp_path / "nowhere", "--quiet")
    assert (done.returncode, done.stdout) == (4, "") and "nowhere: No such file or directory" in done.stderr
    (tmp_path / "empty/link").symlink_to("nowhere")
    link = dlio.stage(tmp_path / "empty", tmp_path / "alone")
    assert command(tmp_path / "alone").stdout.startswith(f"{link.root}: 0 files, ")
    for words in (["--decode"], ["--from", "x"], ["--max-rate", "0"], ["--workers", "2"]):
        assert command(local, *words).returncode == 2


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="asks the kernel by the number of its call")
def test_priority_is_the_lowest() -> None:
    def child() -> None:
        from dlio.stage.upkeep.scrub import step_back

        step_back()
        assert os.nice(0) == 19
        assert ctypes.CDLL(None).syscall(252, 1, 0) >> 13 == 3  # ioprio_get: the idle class

    assert Forked(child).wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_root_scrubs_everybodys_and_a_user_only_his_own(dataset: Manifest, tmp_path: Path) -> None:
    open_to_all(tmp_path)
    dest, name = tmp_path / "tmp", "shard-00004.bin"
    assert as_user(2001, lambda: dlio.stage(dataset, dest)) == 0
    assert as_user(2002, lambda: dlio.stage(dataset, dest)) == 0
    folders = [dest / "dlio" / dataset.content_id, dest / "dlio-u2002" / "dlio" / dataset.content_id]
    for folder in folders:
        flip(folder / name)

    def user() -> None:
        assert [(found.path, found.is_whole) for found in scrub(dest, mend=True)] == [(str(folders[1]), True)]

    assert as_user(2002, user) == 0
    assert [(found.path, list(found.repaired)) for found in scrub(dest, mend=True)] == [
        (str(folders[0]), [name]),
        (str(folders[1]), []),
    ]
    assert [(folder / name).stat().st_uid for folder in folders] == [2001, 2002]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_a_hostile_copy_gets_nothing_of_roots(dataset: Manifest, tmp_path: Path) -> None:
    """Its marker names a source that only root may read."""
    open_to_all(tmp_path)
    dest = tmp_path / "tmp"
    assert as_user(2001, lambda: dlio.stage(dataset, dest)) == 0
    staged = dest / "dlio" / dataset.content_id
    (staged / "shard-00004.bin").unlink()
    dataset.root.chmod(0o700)
    found = list(scrub(dest, mend=True))
    assert "Permission denied" in found[0].problem
    assert not (staged / "shard-00004.bin").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_work_as_the_owner_has_only_the_owners_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def rights() -> list[object]:
        return [*os.getresuid(), *os.getresgid(), os.getgroups(), os.environ.get("AWS_SECRET_ACCESS_KEY")]

    assert list(as_owner(2001, rights)) == [2001] * 3 + [65534] * 3 + [[], None]
    with pytest.raises(StorageError, match="not for you"):
        list(as_owner(2001, refuse))
    with pytest.raises(StorageError, match="died with the exit code 9"):
        list(as_owner(2001, lambda: os._exit(9)))
    assert list(as_owner(0, lambda: [os.getpid()])) == [os.getpid()]


def refuse() -> list[object]:
    raise ManifestError("not for you")
