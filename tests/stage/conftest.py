"""Data sets of random bytes, and processes that stage them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import NAME, File, Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.io.files import digest_file
from dlio.stage.cache.folder import StagedFolder

from .launched import Cluster

MiB = 1 << 20


def write_dataset(
    root: Path, sizes: list[int], *, stem: str = "shard", seed: int = 0, digest: str = "xxh3-128"
) -> Manifest:
    """Returns the saved manifest of one-file shards of random bytes with the given sizes."""
    contents = random.Random(seed)
    root.mkdir(parents=True, exist_ok=True)
    shards = []
    for number, size in enumerate(sizes):
        path = root / f"{stem}-{number:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents.randbytes(size))
        shards.append(Shard(path.stem, 1, (File(str(path.relative_to(root)), size, digest_file(path, digest)),)))
    manifest = Manifest("tfrecord", Schema.of({"image": "bytes"}, (), 0), tuple(shards), {}, root)
    manifest.save(root)
    return manifest


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """Returns the files that are there under their final names and are not what their digests say."""
    there = [file for shard in manifest.shards for file in shard.files if (folder / file.name).exists()]
    return [file.name for file in there if digest_file(folder / file.name, file.digest.split(":")[0]) != file.digest]


def assert_staged(staged: Manifest, source: Manifest) -> None:
    """The staged copy holds every byte, its manifest, and nothing besides."""
    assert staged == source
    assert Manifest.load(staged.root) == source
    names = {file.name for shard in source.shards for file in shard.files}
    found = {str(path.relative_to(staged.root)) for path in staged.root.rglob("*") if path.is_file()}
    assert found == names | {NAME, ".dlio/copy.json"}
    assert damaged_files(staged.root, source) == []


@pytest.fixture
def dataset(tmp_path: Path) -> Manifest:
    """Seven shards, empty and odd-sized ones among them; 20 MiB in all."""
    return write_dataset(tmp_path / "source", [0, 1, 5 * MiB + 3, 4 * MiB, 9 * MiB, 2 * MiB - 1, 7])


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLIO_LAUNCHER", "single")


@pytest.fixture
def job_7(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's job that everything is staged in."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def folder_of(staged: Manifest) -> StagedFolder:
    """Returns the folder that a staged manifest lies in."""
    return StagedFolder(staged.root.parent.parent, staged.root.name)


def wait_for(path: Path) -> None:
    """Returns once another process has made the file."""
    while not path.exists():
        time.sleep(0.005)


class Forked:
    """A child process that runs a function; the test waits for it or kills it."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                function()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

    def kill(self) -> None:
        """Kills it at once, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Returns its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts small tmpfs file systems with the options given."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o {options} none '{folder}' 2>/dev/null") != 0:
            pytest.skip("mounting a file system needs root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        os.system(f"umount '{folder}'")
        shutil.rmtree(folder, ignore_errors=True)


def node(rank: int, count: int) -> Topology:
    """Returns the topology of the only process on one of `count` nodes."""
    return Topology(rank, count, 0, 1, rank, count)


@pytest.fixture
def slow_source(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a view of a folder through benchmarks/slow_source.py, with its options; `counts` lies beside it."""
    pytest.importorskip("mfusepy")
    script = Path(__file__).parents[2] / "benchmarks" / "slow_source.py"
    servers: list[tuple[Path, subprocess.Popen[bytes]]] = []

    def mount(folder: Path, *options: str) -> Path:
        mounted = tmp_path / f"mount{len(servers)}"
        mounted.mkdir()
        counts = ["--counts", str(mounted.with_suffix(".counts"))]
        server = subprocess.Popen([sys.executable, str(script), str(folder), str(mounted), *counts, *options])
        servers.append((mounted, server))
        while not mounted.is_mount():
            if server.poll() is not None:
                pytest.skip("FUSE cannot be mounted here")
            time.sleep(0.01)
        return mounted

    yield mount
    for mounted, server in servers:
        os.system(f"umount -l '{mounted}' 2>/dev/null || fusermount3 -u -z '{mounted}'")
        server.terminate()  # a process with a mount namespace of its own may still hold the mount
        server.wait()


def bytes_read(mounted: Path) -> int:
    """Returns what has been read from a source mounted by `slow_source`."""
    return int(mounted.with_suffix(".counts").read_text() or 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, "mpi")


@pytest.fixture(params=["mpi", "gloo"])
def any_cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    """What every transport has to pass."""
    if request.param == "gloo":
        pytest.importorskip("torch")
    return Cluster(tmp_path, request.param)
