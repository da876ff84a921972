"""Full disks, folders without permission, killed workers and runs: nothing is left half done."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import dlio
from dlio import executors, formats
from dlio.cli import main
from dlio.dataset.manifest import NAME, PARTIAL_NAME, read_partial
from dlio.errors import SourceError, StorageError
from dlio.io.digesting_file import DigestingFile
from dlio.pack.listing.image_files import ImageFiles
from dlio.pack.write import ASIDE
from dlio.sources import image_folder
from dlio.testing.engine_scenarios import DeadlyFolder
from tests.helpers.forked import run_until
from tests.helpers.images import make_image_folder
from tests.helpers.packing import BYTE_IDENTICAL, content, image_folder_as, samples
from tests.helpers.rounds import ROUNDS
from tests.helpers.users import unprivileged

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system of limited size")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace injects the faults")


def assert_only_whole_shards(out: Path) -> None:
    """Only shards that the partial manifest names are visible, and no data set."""
    assert not (out / NAME).exists()
    partial = read_partial(out)
    named = {file.name.partition("/")[0] for shard in (partial.shards if partial else ()) for file in shard.files}
    assert {path.name for path in out.iterdir()} - {PARTIAL_NAME} == named


@contextmanager
def small_disk(folder: Path, options: str):
    """A tmpfs on `folder` with limits such as `size=1m` or `nr_inodes=20`."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class TestFullDisk:
    @needs_root
    def test_a_lack_of_space_is_foreseen(self, tmp_path):
        make_image_folder(tmp_path / "in", {"a": 10}, width=200, height=200, kind="BMP")
        with small_disk(tmp_path / "disk", "size=1m") as disk:
            with pytest.raises(StorageError, match=r"bytes free, 1,200,540 are needed: choose another folder"):
                dlio.pack(image_folder(tmp_path / "in"), disk / "out", engine="serial")
            assert list((disk / "out").iterdir()) == []

    @needs_root
    def test_a_disk_that_takes_a_part_of_a_write_is_full_and_not_broken(self, tmp_path):
        with small_disk(tmp_path / "disk", "size=1m") as disk:
            file = DigestingFile(disk / "file", "xxh3-128")
            with pytest.raises(StorageError, match="No space left"):
                file.write(bytes(1 << 21))
            file.close()  # else its error would hide the first

    @needs_root
    @pytest.mark.parametrize("name", formats.names())
    def test_a_disk_that_fills_up_leaves_whole_shards(self, tmp_path, name):
        make_image_folder(tmp_path / "in", {"a": 30}, width=100, height=100, kind="BMP")
        source = image_folder(tmp_path / "in")
        arguments = {"format": name, "num_shards": 6, "workers": 1}
        dlio.pack(source, tmp_path / "whole", **arguments)
        with small_disk(tmp_path / "disk", "size=9m") as disk:  # HDF5 fills up its last chunk, here most of a shard

            def fill(shard):
                with (disk / "filler").open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
                    while file.write(bytes(4096)):
                        pass

            with pytest.raises(StorageError, match=r"cannot|died"):
                dlio.pack(source, disk / "out", report=fill, **arguments)
            assert_only_whole_shards(disk / "out")
            (disk / "filler").unlink()
            dlio.pack(source, disk / "out", **arguments)
            assert samples(disk / "out") == samples(tmp_path / "whole")
            if name in BYTE_IDENTICAL:
                assert content(disk / "out") == content(tmp_path / "whole")

    @needs_root
    @pytest.mark.parametrize(("name", "inodes"), [("tfrecord", 12), ("lmdb", 8), ("hdf5", 7)])
    def test_a_lack_of_inodes_says_what_to_free(self, photos, tmp_path, name, inodes):
        with small_disk(tmp_path / "disk", f"size=8m,nr_inodes={inodes}") as disk:
            with pytest.raises(StorageError, match=r"cannot create .*: No space left on device: free some .* inodes"):
                dlio.pack(image_folder(photos), disk / "out", format=name, num_shards=9, engine="serial")
            assert_only_whole_shards(disk / "out")


class TestPermission:
    def test_a_folder_that_cannot_be_made(self, open_tmp, photos):
        shutil.copytree(photos, open_tmp / "in")
        open_tmp.chmod(0o555)
        with unprivileged(), pytest.raises(StorageError, match=r"cannot create .*out: Permission denied: check"):
            dlio.pack(image_folder(open_tmp / "in"), open_tmp / "out", engine="serial")
        open_tmp.chmod(0o755)
        assert not (open_tmp / "out").exists()

    def test_a_folder_that_cannot_be_written(self, open_tmp, photos):
        shutil.copytree(photos, open_tmp / "in")
        (open_tmp / "out").mkdir(mode=0o555)
        with unprivileged(), pytest.raises(StorageError, match=r"Permission denied: check the owner"):
            dlio.pack(image_folder(open_tmp / "in"), open_tmp / "out", engine="serial")
        assert list((open_tmp / "out").iterdir()) == []

    def test_an_image_that_may_not_be_read(self, open_tmp):
        make_image_folder(open_tmp / "in", {"a": 3})
        (open_tmp / "out").mkdir()
        (open_tmp / "out").chmod(0o1777)
        (open_tmp / "in/a/0001.png").chmod(0)
        with unprivileged():
            with pytest.raises(SourceError, match=r"cannot read .*0001\.png: Permission denied"):
                dlio.pack(image_folder(open_tmp / "in"), open_tmp / "out", engine="serial")
            manifest = dlio.pack(image_folder(open_tmp / "in"), open_tmp / "out", on_error="skip", engine="serial")
        assert [key for key, _ in manifest.skipped] == ["a/0001.png"]

    def test_a_class_folder_that_may_not_be_listed(self, open_tmp):
        make_image_folder(open_tmp / "in", {"a": 3})
        (open_tmp / "in/a").chmod(0)
        with unprivileged():
            listing = image_folder(open_tmp / "in").listing()
        assert [key for key, _ in listing.refused] == ["a"]
        with pytest.raises(SourceError, match=r"in/a.*Permission denied"):
            listing.check_whole()
        (open_tmp / "in/a").chmod(0o755)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_is_named_and_the_next_run_continues(photos, tmp_path, workers):
    source = DeadlyFolder(photos, deadly="dog/0005.png")
    arguments = {"num_shards": 12, "workers": workers}
    with pytest.raises(StorageError, match=r"a worker died .* while working on .*shard-00000\d.*: run the same"):
        dlio.pack(source, tmp_path / "out", **arguments)
    assert not (tmp_path / "out" / NAME).exists()
    dlio.pack(source, tmp_path / "out", **arguments)
    dlio.pack(image_folder(photos), tmp_path / "whole", **arguments)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


class StuckFolder(ImageFiles):
    """An image folder of which one worker never reads the first sample; another is killed when that one hangs."""

    @contextmanager
    def reader(self, listing):
        flag = self.path.with_name("stuck")

        def read(index):
            if listing.keys[index] != "cat/0000.png":
                while not flag.exists():
                    time.sleep(0.005)
                os.kill(os.getpid(), signal.SIGKILL)
            flag.touch()
            time.sleep(600)

        yield read


def test_a_killed_workers_pool_ends_before_the_error_comes(photos, tmp_path):
    previous = signal.signal(signal.SIGTERM, lambda *_: None)  # as trainers do, and children inherit it
    try:
        with executors.open_engine("processes", 2) as pool:
            with pytest.raises(StorageError, match="a worker died"):
                dlio.pack(image_folder_as(StuckFolder, photos), tmp_path / "out", num_shards=2, engine=pool)
            assert [path.name for path in (tmp_path / "out").iterdir()] == [PARTIAL_NAME]
    finally:
        signal.signal(signal.SIGTERM, previous)


def pack_words(source: Path, out: Path, *options: str) -> list[str]:
    return ["pack", str(source), str(out), *options]


def pack_command(source: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "dlio", *pack_words(source, out, *options)]


def processes_of(out: Path) -> list[int]:
    """Returns the processes, workers too, of commands that name `out`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(out).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def assert_no_orphans(out: Path) -> None:
    deadline = time.monotonic() + 20
    while processes_of(out) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_of(out) == []


@pytest.mark.parametrize("name", BYTE_IDENTICAL)
def test_killed_at_any_moment_and_run_again_nothing_differs(tmp_path, name):
    make_image_folder(tmp_path / "in", {"a": 150, "b": 150}, width=64, height=64)
    options = ["--format", name, "--num-shards", "25", "--shuffle", "1", "--workers", "2", "--quiet"]
    began = time.monotonic()
    subprocess.run(pack_command(tmp_path / "in", tmp_path / "whole", *options), check=True)
    seconds = time.monotonic() - began
    whole = content(tmp_path / "whole")
    moments = random.Random(name)
    finished = 0
    for number in range(2 * ROUNDS):
        out = tmp_path / f"out-{number}"
        with subprocess.Popen(pack_command(tmp_path / "in", out, *options)) as run:
            if number % 2:
                time.sleep(seconds * moments.uniform(0.3, 1))
            else:  # however slow the machine is, some kills hit a run that has begun to write
                while run.poll() is None and not (out / PARTIAL_NAME).exists():
                    time.sleep(0.001)
                time.sleep(moments.uniform(0, 0.02))
            run.kill()
        assert_no_orphans(out)
        if out.exists() and not (out / NAME).exists():
            finished += (out / PARTIAL_NAME).exists()
        assert main(pack_words(tmp_path / "in", out, *options)) == 0
        assert content(out) == whole
        shutil.rmtree(out)
    assert finished, "no kill hit a run between its first and its last shard"


@needs_strace
@pytest.mark.parametrize(
    "fault",
    [
        "fsync:error=EIO:when=3",
        "rename:error=EIO:when=5",
        "writev:error=ENOSPC:when=5",
        "mkdir:error=ENOSPC:when=2",
    ],
)
def test_a_failing_system_call_leaves_a_run_that_continues(photos, tmp_path, fault):
    options = ["--format", "recordio", "--num-shards", "4", "--engine", "serial"]
    assert main(pack_words(photos, tmp_path / "whole", *options)) == 0
    call = fault.partition(":")[0]
    watched = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={fault}"]
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [*watched, *pack_command(photos, tmp_path / "out", *options)]
    run = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert run.returncode == 4
    assert run.stderr.startswith("dlio: cannot ") and "Traceback" not in run.stderr
    assert not (tmp_path / "out" / ASIDE).exists()
    assert not (tmp_path / "out" / NAME).exists()
    assert main(pack_words(photos, tmp_path / "out", *options)) == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize(("call", "when"), [("fsync", 7), ("rename", 2), ("rename", 6)])
def test_a_run_killed_in_a_system_call_continues(photos, tmp_path, call, when):
    options = ["--format", "recordio", "--num-shards", "4", "--engine", "serial"]
    assert main(pack_words(photos, tmp_path / "whole", *options)) == 0
    again = pack_words(photos, tmp_path / "out", *options)
    assert run_until(call, when, lambda: main(again)) == -signal.SIGKILL
    assert not (tmp_path / "out" / NAME).exists()
    assert main(again) == 0
    assert content(tmp_path / "out") == content(tmp_path / "whole")
