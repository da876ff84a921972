"""Data sets to stage, small disks, and clusters of processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from dlio.io import remote_files
from dlio.stage import strategies
from tests.helpers.hostile_server import Server, servers_of
from tests.helpers.staging import MiB, write_dataset
from tests.stage.launched import Cluster

for name in strategies.names():
    strategies.load(name)  # once for all forked processes, of which other users may not read root's Python


@pytest.fixture
def dataset(tmp_path: Path) -> Manifest:
    """Seven shards, empty and odd-sized ones among them."""
    return write_dataset(tmp_path / "source", [0, 1, 50_003, 40_000, 90_000, 19_999, 7])


@pytest.fixture
def large_dataset(tmp_path: Path) -> Manifest:
    """The same in 20 MiB, of several blocks."""
    return write_dataset(tmp_path / "source", [0, 1, 5 * MiB + 3, 4 * MiB, 9 * MiB, 2 * MiB - 1, 7])


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLIO_LAUNCHER", "single")


@pytest.fixture
def job_7(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's job that everything is staged in."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")


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
        os.system(f"umount --lazy '{folder}'")  # an agent that a test has left running uses it still
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, "mpi")


@pytest.fixture(params=["mpi", "folder"])
def any_cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Cluster:
    """Tests that every kind of meeting of nodes must pass."""
    return Cluster(tmp_path, request.param)


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    """A folder as open as /tmp."""
    from tests.helpers.users import open_to_all

    return open_to_all(tmp_path)


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """Years of work, in a folder of Alice's that all may read."""
    from tests.helpers.users import ALICE

    folder = tmp_path / "home"
    (folder / "1").mkdir(parents=True)
    for path in (folder / "thesis.tex", folder / "1" / "chapter", folder / "2"):
        path.write_text("years of work")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ALICE, ALICE)
    return folder


@pytest.fixture
def serve(dataset: Manifest) -> Iterator[Callable[[], Server]]:
    """Starts servers over the folder of the data set, which answer as a test says."""
    with servers_of(dataset.root) as start:
        yield start


@pytest.fixture
def server(serve: Callable[[], Server]) -> Server:
    """One such server."""
    return serve()


@pytest.fixture
def tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that fails is asked twice, without a pause."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(remote_files, "TRIES", 2)
