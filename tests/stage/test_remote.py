"""Data sets at URLs: an S3-compatible server and a web server on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DigestError, ManifestError, StorageError, UsageError
from dlio.io import remote_files
from dlio.loaders.opened import open_data
from dlio.stage.run import run
from dlio.stage.sources.remote import remote_set
from tests.helpers.s3_server import s3_server
from tests.helpers.staging import MiB, damaged_files, interrupted_after, write_dataset
from tests.helpers.web import WebServer, running

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def dataset(large_dataset: Manifest) -> Manifest:
    """Twenty MiB, of several blocks."""
    return large_dataset


@pytest.fixture
def web(dataset: Manifest) -> Iterator[WebServer]:
    """A web server over the folder of the data set."""
    server = WebServer(dataset.root)
    with running(server):
        yield server


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests; what copies is watched by the tests of mounted folders."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_SECONDS", 0.001)


def test_a_web_servers_data_set_is_read_in_ranges(web: WebServer, dataset: Manifest, tmp_path: Path) -> None:
    staged, summary = run(web.url, tmp_path / "local", strategy="replicate")
    assert staged == dataset
    assert damaged_files(staged.root, dataset) == []
    assert summary.source_bytes == summary.copied_bytes == dataset.num_bytes
    spans = sorted(span for name, span in web.ranges if name == "shard-00004.bin" and span)
    assert spans == [f"bytes=0-{4 * MiB - 1}", f"bytes={4 * MiB}-{8 * MiB - 1}", f"bytes={8 * MiB}-{9 * MiB - 1}"]
    asked = len(web.ranges)
    assert run(web.url, tmp_path / "local", strategy="replicate")[1].copied_bytes == 0
    assert [name for name, _ in web.ranges[asked:]] == [NAME]


def test_a_range_is_read_into_its_place(web: WebServer, dataset: Manifest) -> None:
    file, target = dataset.shards[4].files[0], bytearray(100)
    remote_set(web.url).read_range(file, 5 * MiB, memoryview(target))
    assert bytes(target) == (dataset.root / file.name).read_bytes()[5 * MiB : 5 * MiB + 100]


def test_requests_that_fail_are_repeated(web: WebServer, dataset: Manifest, tmp_path: Path) -> None:
    web.failing = 4
    assert dlio.stage(web.url, tmp_path / "local") == dataset


def test_a_server_that_stays_down_is_named(web: WebServer, tmp_path: Path) -> None:
    web.failing = 10**6
    with pytest.raises(StorageError, match=rf"cannot read {web.url}/{NAME}: 503") as raised:
        dlio.stage(web.url.replace("//", "//user:secret@"), tmp_path / "local")
    assert len(web.ranges) == remote_files.TRIES
    assert "secret" not in str(raised.value)


def test_a_download_that_was_cut_off_goes_on(web: WebServer, dataset: Manifest, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(web.url, tmp_path / "local", strategy="replicate", listeners=interrupted_after(8 * MiB))
    staged, summary = run(web.url, tmp_path / "local", strategy="replicate")
    assert damaged_files(staged.root, dataset) == []
    assert summary.source_bytes <= dataset.num_bytes - 4 * MiB


def test_damage_on_the_server_is_found_by_the_digest(web: WebServer, dataset: Manifest, tmp_path: Path) -> None:
    with (dataset.root / "shard-00003.bin").open("r+b") as file:
        file.write(b"damage")
    with pytest.raises(DigestError, match=rf"{web.url}/shard-00003.bin is damaged"):
        dlio.stage(web.url, tmp_path / "local")


def test_a_short_file_on_the_server_is_named(web: WebServer, dataset: Manifest, tmp_path: Path) -> None:
    (dataset.root / "shard-00006.bin").write_bytes(b"short")
    with pytest.raises(StorageError, match="gave 5 bytes, asked for 7 from 0 on"):
        dlio.stage(web.url, tmp_path / "local")


def test_what_a_server_lacks_is_said(web: WebServer, dataset: Manifest, tmp_path: Path) -> None:
    web.answers_ranges = False
    with pytest.raises(StorageError, match="its server does not support range requests"):
        dlio.stage(web.url, tmp_path / "local")
    (dataset.root / NAME).unlink()
    with pytest.raises(ManifestError, match=f"{web.url}/{NAME} does not exist"):
        dlio.stage(web.url, tmp_path / "local")


def test_the_copy_of_a_url_is_found_again(
    web: WebServer, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match=f"no complete copy of {web.url} is on this node: run dlio stage"):
        dlio.resolve(web.url)
    staged = dlio.stage(web.url, tmp_path / "local")
    monkeypatch.setenv("DLIO_STAGED", str(tmp_path / "local"))
    assert dlio.resolve(web.url) == staged.root
    assert open_data(web.url).numbering.manifest.root == staged.root


def test_any_file_system_of_fsspec_will_do(dataset: Manifest, tmp_path: Path) -> None:
    """gs:// and others go the same way as memory://, which needs no server and no package of its own."""
    fsspec.filesystem("memory").put(f"{dataset.root}/", "/packed", recursive=True)
    staged, summary = run("memory://packed", tmp_path / "local", strategy="replicate")
    fsspec.filesystem("memory").rm("/packed", recursive=True)
    assert (staged, summary.source_bytes) == (dataset, dataset.num_bytes)
    assert damaged_files(staged.root, dataset) == []


def test_urls_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing://here: Protocol not known"):
        dlio.stage("nothing://here", tmp_path)
    with pytest.raises(UsageError, match=r"given with \? or #"):
        dlio.stage("https://127.0.0.1/packed?key=1", tmp_path)


def test_names_are_quoted(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [5, 700], stem="sub folder/50% of #1?")
    server = WebServer(source.root)
    with running(server):
        staged = dlio.stage(server.url, tmp_path / "local")
    assert damaged_files(staged.root, source) == []


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, dataset: Manifest) -> Iterator[str]:
    """The data set in a bucket of an S3-compatible server, whose address and keys are in the environment."""
    with s3_server(monkeypatch):
        s3 = fsspec.filesystem("s3")
        s3.mkdir("photos")
        s3.put(f"{dataset.root}/", "photos/packed/", recursive=True)
        yield "s3://photos/packed"


def test_a_bucket_is_staged_from_the_command_line(
    bucket: str, dataset: Manifest, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["stage", bucket, str(tmp_path / "local")]) == 0
    staged = Manifest.load(capfd.readouterr().out.splitlines()[-1])
    assert staged == dataset
    assert damaged_files(staged.root, dataset) == []
    assert not os.path.exists("s3:")  # noqa: PTH110  no path was made of the URL
