"""Any file or folder is staged as it is: an image, an environment, weights."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.manifest import NAME, File, Manifest
from dlio.errors import DigestError, ManifestError, StorageError, UsageError
from dlio.io import threads
from dlio.stage.planning.job import Listeners
from dlio.stage.run import run
from dlio.stage.sources import MountedFolder
from dlio.stage.sources.anything import TreeFolder
from tests.helpers.agents import end_agent
from tests.helpers.forked import Forked
from tests.helpers.slow_source import bytes_read
from tests.helpers.squashfs import needs, squash, unsquashed
from tests.helpers.staging import flip, folder_of
from tests.helpers.trees import LARGE, make_tree, snapshot


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder of all kinds of files."""
    return make_tree(tmp_path / "shared" / "env")


def num_bytes(tree: Path) -> int:
    """The size of a folder's files and of the list of them."""
    return TreeFolder(tree).manifest.num_bytes


def test_a_folder_comes_with_its_modes_times_links_and_empty_folders(tree: Path, tmp_path: Path) -> None:
    for name, megabytes in {"large": 1, "x.new": 24, "y": 1, "z": 1}.items():  # more than what is written at once
        (tree / name).write_bytes(os.urandom((megabytes << 20) + 1))
    staged, summary = run(tree, tmp_path / "local")
    assert staged.path == staged.root / "env" == Path(summary.path)
    assert snapshot(staged.path) == snapshot(tree)
    assert summary.source_bytes == summary.copied_bytes == staged.num_bytes == num_bytes(tree)
    assert {path.name for path in staged.root.iterdir()} == {"env", "env.tree", NAME, ".dlio"}
    again, summary = run(tree, tmp_path / "local")
    assert (summary.source_bytes, summary.copied_bytes) == (0, 0) and again.path == staged.path
    assert Manifest.load(staged.path).content_id == staged.content_id == staged.root.name
    assert dlio.verify(staged) == []


def test_a_file_comes_under_its_name_and_a_link_under_its_own(tmp_path: Path) -> None:
    (weights := tmp_path / "weights-3.bin").write_bytes(os.urandom(LARGE))
    (tmp_path / "weights.bin").symlink_to(weights)
    staged = dlio.stage(tmp_path / "weights.bin", tmp_path / "local")
    assert staged.path.name == "weights.bin" and staged.path.read_bytes() == weights.read_bytes()
    assert not staged.path.is_symlink()
    (tmp_path / "none").touch()
    assert dlio.stage(tmp_path / "none", tmp_path / "local").path.read_bytes() == b""
    (tmp_path / "bare").mkdir()
    assert not list(dlio.stage(tmp_path / "bare", tmp_path / "local").path.iterdir())


def test_the_last_line_is_the_path(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stage", f"{tree}/", str(tmp_path / "local")]) == 0
    said, path = capsys.readouterr().out.splitlines()
    assert re.search(r": 30 files, [\d.]+ kB copied in .* \(replicate\)$", said)
    assert Path(path).name == "env" and snapshot(Path(path)) == snapshot(tree)
    assert main(["stage", str(tree), str(tmp_path / "local"), "--status"]) == 0
    assert capsys.readouterr().out == f"{path}: complete\n"
    assert main(["verify", path]) == 0
    assert main(["clean", str(tmp_path / "local")]) == 0
    assert not Path(path).exists()


def test_a_changed_file_makes_another_copy(tree: Path, tmp_path: Path) -> None:
    first = dlio.stage(tree, tmp_path / "local")
    os.utime(tree / "x", ns=(5, 5))
    second = dlio.stage(tree, tmp_path / "local")
    assert first.root != second.root and second.path.joinpath("x").stat().st_mtime_ns == 5
    (tree / "small-001").chmod(0o600)
    assert dlio.stage(tree, tmp_path / "local").root != second.root


def test_rights_that_a_copy_must_not_have_are_dropped(tree: Path, tmp_path: Path) -> None:
    (tree / "bin" / "tool").chmod(0o6777)
    (tree / "empty").chmod(0o1577)
    staged = dlio.stage(tree, tmp_path / "local").path
    assert stat.S_IMODE((staged / "bin" / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((staged / "empty").stat().st_mode) == 0o755  # its owner can remove what is in it


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users")
def test_a_group_reads_a_copy_only_as_it_reads_the_source(tree: Path, tmp_path: Path) -> None:
    os.chown(tree / "x", -1, 12345)
    (tree / "x").chmod(0o640)
    (tree / "small-001").chmod(0o640)
    subprocess.run(["setfacl", "-m", "u:4711:r", tree / "small-001"], check=True)
    staged = dlio.stage(tree, tmp_path / "local").path
    assert (stat.S_IMODE((staged / "x").stat().st_mode), (staged / "x").stat().st_gid) == (0o640, 12345)
    assert stat.S_IMODE((staged / "small-001").stat().st_mode) == 0o600


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(("make", "kind"), [(_pipe, "a pipe"), (_socket, "a socket")])
def test_what_is_no_file_is_refused_by_name(
    tree: Path, tmp_path: Path, make: Callable[[Path], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree / "empty")  # the path of a socket is short
    make(Path("odd"))
    with pytest.raises(UsageError, match=f"env/empty/odd is {kind}: only files, folders and links are staged"):
        dlio.stage(tree, tmp_path / "local")
    with pytest.raises(UsageError, match="/dev/null is a device"):
        dlio.stage("/dev/null", tmp_path / "local")
    assert not (tmp_path / "local").exists()


def test_what_does_not_go_with_files_is_refused(tree: Path, tmp_path: Path) -> None:
    for strategy in ("partition", "stripe"):
        with pytest.raises(UsageError, match=f"env cannot be staged with {strategy}: only data sets"):
            dlio.stage(tree, tmp_path / "local", strategy=strategy)
    for mode in (0o644, 0o666):
        with pytest.raises(UsageError, match="keeps its modes"):
            dlio.stage(tree, tmp_path / "local", mode=mode)
    with pytest.raises(UsageError, match=": stage to a folder outside it"):
        dlio.stage(tree, tree / "local")
    with pytest.raises(ManifestError, match="does not exist"):
        dlio.stage(tmp_path / "missing", tmp_path / "local")
    deep = tree.joinpath(*["in"] * 25)
    deep.mkdir(parents=True)
    with pytest.raises(UsageError, match="lies deeper than 24 folders"):
        dlio.stage(tree, tmp_path / "local")


def test_more_files_than_a_list_may_have_are_refused(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLIO_MAX_MANIFEST", "500")
    with pytest.raises(ManifestError, match="env holds more than 20 files and folders: stage the folders in it"):
        dlio.stage(tree, tmp_path / "local")


def test_a_data_set_stays_one(tmp_path: Path) -> None:
    """Loaders never list a folder of images given as a data set, and a killed pack is not staged as a folder."""
    (photos := tmp_path / "photos").mkdir()
    with pytest.raises(ManifestError, match="does not exist"):
        dlio.resolve(photos)
    (photos / f"{NAME}.partial").write_text("{}\n")
    with pytest.raises(ManifestError, match="it is still being packed"):
        dlio.stage(photos, tmp_path / "local")


@pytest.mark.parametrize("name", ["small-007", "x"])
def test_a_file_that_changes_before_it_is_read_ends_the_copy(tree: Path, tmp_path: Path, name: str) -> None:
    source = TreeFolder(tree)
    (tree / name).chmod(0o600)
    content = (tree / name).read_bytes()
    (tree / name).write_bytes(content[::-1])
    with pytest.raises(StorageError, match=f"env/{name} changed while it was copied: stage again"):
        run(source, tmp_path / "local")
    assert not list((tmp_path / "local").glob(f"dlio/*/{NAME}"))
    assert snapshot(dlio.stage(tree, tmp_path / "local").path) == snapshot(tree)


@pytest.mark.parametrize("after", [100_000, 500_000, 800_000])
def test_a_killed_copy_is_gone_on_with(tree: Path, tmp_path: Path, after: int) -> None:
    def killed() -> None:
        written = 0

        def report(more: int) -> None:
            nonlocal written
            written += more
            if written > after:
                os.kill(os.getpid(), 9)

        run(tree, tmp_path / "local", listeners=Listeners(report=report))

    assert Forked(killed).wait() != 0
    assert not list((tmp_path / "local").glob(f"dlio/*/{NAME}"))
    staged, summary = run(tree, tmp_path / "local")
    assert summary.source_bytes <= num_bytes(tree) - after + LARGE
    assert snapshot(staged.path) == snapshot(tree) and dlio.verify(staged) == []


def test_a_file_without_its_digest_is_copied_again(tree: Path, tmp_path: Path) -> None:
    """It got its name when the last process was killed; nobody knows whether its bytes are right."""
    staged = dlio.stage(tree, tmp_path / "local")
    (staged.root / NAME).unlink()
    journal = staged.root / ".dlio" / "digests"
    lines = [line for line in journal.read_bytes().split(b"\n") if b'"env/bin/tool"' not in line]
    journal.write_bytes(b"\n".join(lines) + b'["env/x", "xxh3')
    flip(staged.path / "bin" / "tool")
    again, summary = run(tree, tmp_path / "local")
    assert summary.source_bytes == (tree / "bin" / "tool").stat().st_size
    assert snapshot(again.path) == snapshot(tree) and dlio.verify(again) == []


def test_two_processes_of_a_node_copy_once(tree: Path, tmp_path: Path, slow_source: Callable[..., Path]) -> None:
    mounted = slow_source(tree.parent, "--latency-ms", "1")
    both = [Forked(lambda: dlio.stage(mounted / "env", tmp_path / "local")) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    [manifest] = (tmp_path / "local").glob(f"dlio/*/{NAME}")
    assert snapshot(manifest.parent / "env") == snapshot(tree)
    assert bytes_read(mounted) == sum(
        path.stat().st_size for path in tree.rglob("*") if not path.is_symlink() and path.is_file()
    )


def test_small_files_of_slow_storage_are_read_side_by_side(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_SLOW_SECONDS", -1.0)
    names, plain = set[str](), MountedFolder.read_range

    def noted(self: MountedFolder, file: File, offset: int, target: memoryview) -> None:
        names.add(threading.current_thread().name)
        plain(self, file, offset, target)

    monkeypatch.setattr(MountedFolder, "read_range", noted)
    assert snapshot(dlio.stage(tree, tmp_path / "local").path) == snapshot(tree)
    assert names == {"dlio-fill", "dlio-files"}
    for thread in [each for each in threading.enumerate() if each.name == "dlio-files"]:
        thread.join(60)
        assert not thread.is_alive()


def test_damage_is_found_and_repaired(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    staged = dlio.stage(tree, tmp_path / "local")
    flip(staged.path / "bin" / "tool")
    flip(staged.path / "small-002")
    (staged.path / "outside").unlink()
    (staged.path / "empty" / "inner").rmdir()
    (staged.path / "small-003").chmod(0o777)
    damaged = {Path(each.path).name for each in dlio.verify(staged)}
    assert damaged == {"tool", "small-002", "outside", "inner", "small-003"}
    assert main(["verify", str(staged.path), "--repair"]) == 0
    assert "5 damaged, 5 repaired" in capsys.readouterr().out
    assert snapshot(staged.path) == snapshot(tree)
    flip(staged.root / "env.tree")
    assert main(["verify", "--staged", str(tmp_path / "local"), "--repair"]) == 0
    (staged.root / NAME).write_bytes((staged.root / NAME).read_bytes()[:200])
    assert main(["verify", str(staged.root), "--repair"]) == 0
    assert dlio.verify(Manifest.load(staged.root)) == []


def test_a_copy_is_staged_on(tree: Path, tmp_path: Path) -> None:
    """As from a node's disk to another node, when the source is away; its digests are known then."""
    staged = dlio.stage(tree, tmp_path / "local")
    expected = snapshot(tree)
    tree.rename(tree.with_name("away"))
    flip(staged.path / "small-002")
    with pytest.raises(DigestError, match="small-002 is damaged"):
        dlio.stage(staged.path, tmp_path / "other")
    flip(staged.path / "small-002")
    again = dlio.stage(staged.path, tmp_path / "other")
    assert again.content_id == staged.content_id and snapshot(again.path) == expected


def test_in_the_background(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = [str(tree), str(tmp_path / "local")]
    assert main(["stage", *where, "--background"]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    try:
        assert main(["stage", *where, "--wait"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == str(path)
        assert snapshot(path) == snapshot(tree)
    finally:
        end_agent(folder_of(Manifest.load(path)))
    assert main(["stage", str(tree), str(tmp_path / "more"), "--background", "--cache-size", "1M"]) == 2
    assert "is copied as a whole: leave out the limit" in capsys.readouterr().err


def test_no_part_of_a_folder_is_kept_in_the_background(
    tree: Path, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A loader could read the rest elsewhere, but no loader reads a folder."""
    (tree / "large").write_bytes(bytes(3 << 20))
    disk = small_disk("size=2m")
    assert main(["stage", str(tree), str(disk), "--background"]) == 4
    assert "bytes free and" in capsys.readouterr().err
    assert not list(disk.rglob("env"))


def test_an_environment_runs_from_its_copy(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (tmp_path / "env" / "bin" / "greet").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "env" / "bin" / "greet").chmod(0o755)
    staged = dlio.stage(tmp_path / "env", tmp_path / "local").path
    (tmp_path / "env").rename(tmp_path / "away")
    code = "import sys; print(sys.prefix)"
    said = subprocess.run([staged / "bin" / "python", "-c", code], check=True, capture_output=True, text=True)
    assert Path(said.stdout.strip()) == staged
    assert subprocess.run([staged / "bin" / "greet"], check=True, capture_output=True).stdout == b"hello\n"


@needs("mksquashfs", "unsquashfs")
def test_an_image_is_read_from_its_copy(tree: Path, tmp_path: Path) -> None:
    image = squash(tree, tmp_path / "env.sqsh")
    staged = dlio.stage(image, tmp_path / "local").path
    assert staged.name == "env.sqsh"
    assert snapshot(unsquashed(staged, tmp_path / "out"))["x"][3] == (tree / "x").read_bytes()
