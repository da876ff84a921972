"""Servers that stall, never end, inflate, send elsewhere or deny: real ones on this machine."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError, StorageError, UsageError
from dlio.io import answers, limits
from tests.helpers import children
from tests.helpers.hostile_server import Request, Server
from tests.helpers.staging import MiB, damaged_files

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("tried_again_soon")


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests; what copies is watched by the tests of mounted folders."""


def say_nothing(request: Request) -> None:
    request.server.over.wait()


def stall_in_the_head(request: Request) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Len")
    request.server.over.wait()


def stall_in_the_body(request: Request) -> None:
    request.begin(Content_Length=1000)
    request.wfile.write(b'{"dlio": 1')
    request.server.over.wait()


def trickle(request: Request) -> None:
    request.begin()
    while not request.server.over.wait(0.02):
        request.wfile.write(b" ")


class TestTime:
    @pytest.mark.parametrize("answer", [say_nothing, stall_in_the_head, stall_in_the_body])
    def test_a_server_that_falls_silent_is_given_up(
        self, server: Server, answer: Callable[[Request], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(answers, "IDLE_SECONDS", 0.2)
        server.answer = answer
        with pytest.raises(StorageError, match=rf"cannot read {server.url}/{NAME}: its server sent nothing for 0.2 s"):
            dlio.stage(server.url, tmp_path / "local")
        assert len(server.asked) == 2

    def test_a_stalled_shard_is_named_and_later_resumed(
        self, server: Server, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, name = server.answer, dataset.shards[4].files[0].name
        server.answer = lambda request: (stall_in_the_body if request.path == f"/{name}" else whole)(request)
        monkeypatch.setattr(answers, "IDLE_SECONDS", 2.0)
        with pytest.raises(StorageError, match=rf"cannot read {server.url}/{name}: its server sent nothing"):
            dlio.stage(server.url, tmp_path / "local", strategy="replicate")
        server.answer = whole
        assert damaged_files(dlio.stage(server.url, tmp_path / "local").root, dataset) == []

    def test_a_server_that_trickles_bytes_is_given_up(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(answers, "TOTAL_SECONDS", 0.3)
        server.answer = trickle
        with pytest.raises(StorageError, match=r"its server sent nothing for 60 s, or not all of it within 0.3 s"):
            dlio.stage(server.url, tmp_path / "local")

    def test_a_stall_that_ends_does_no_harm(
        self, server: Server, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, stalled = server.answer, threading.Lock()
        server.answer = lambda request: (stall_in_the_body if stalled.acquire(blocking=False) else whole)(request)
        monkeypatch.setattr(answers, "IDLE_SECONDS", 2.0)
        assert dlio.stage(server.url, tmp_path / "local") == dataset


class TestSize:
    MOST = 16 * MiB

    @pytest.mark.parametrize("headers", [{}, {"Content_Length": 1 << 40}])
    def test_a_manifest_without_end_is_refused(
        self, server: Server, headers: dict[str, object], tmp_path: Path
    ) -> None:
        def answer(request: Request) -> None:
            request.begin(**headers)
            request.send_for_ever()

        server.answer = answer
        ended = children.dlio("stage", server.url, tmp_path, environ={"DLIO_MAX_MANIFEST": str(self.MOST)})
        assert ended.code == ManifestError.exit_code
        assert f"has more than {self.MOST:,} bytes: if it is a manifest, set DLIO_MAX_MANIFEST" in ended.err
        assert ended.peak_bytes < 400 * MiB
        assert server.sent < self.MOST + 32 * MiB  # with what the sockets hold

    def test_the_limit_of_a_manifest_can_be_raised(
        self, server: Server, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        num_bytes = (dataset.root / NAME).stat().st_size
        monkeypatch.setenv("DLIO_MAX_MANIFEST", str(num_bytes - 1))
        with pytest.raises(ManifestError, match="set DLIO_MAX_MANIFEST"):
            dlio.stage(server.url, tmp_path / "local")
        monkeypatch.setenv("DLIO_MAX_MANIFEST", str(num_bytes))
        assert dlio.stage(server.url, tmp_path / "local") == dataset
        monkeypatch.setenv("DLIO_MAX_MANIFEST", "much")
        with pytest.raises(UsageError, match="DLIO_MAX_MANIFEST: 'much' is not a size"):
            limits.manifest_bytes()

    def test_no_more_of_a_shard_is_read_than_asked(self, server: Server, tmp_path: Path) -> None:
        whole = server.answer

        def answer(request: Request) -> None:
            if request.path == f"/{NAME}":
                return whole(request)
            request.begin(206)
            return request.send(1024 * MiB)

        server.answer = answer
        ended = children.dlio("stage", server.url, tmp_path)
        assert ended.code == StorageError.exit_code
        assert "gave more, asked for" in ended.err
        assert "its length is not what its manifest says" in ended.err
        assert ended.peak_bytes < 400 * MiB

    @pytest.mark.parametrize("path", [f"/{NAME}", "/shard-00004.bin"])
    def test_what_is_sent_compressed_is_not_inflated(self, server: Server, path: str, tmp_path: Path) -> None:
        bomb, whole = gzip.compress(bytes(64 * MiB), 1), server.answer
        bomb *= 32  # 2 GiB

        def answer(request: Request) -> None:
            if request.path != path or request.headers["Range"] == "bytes=0-0":
                return whole(request)
            request.begin(Content_Length=len(bomb), Content_Encoding="gzip")
            request.server.sent += request.wfile.write(bomb)
            return None

        server.answer = answer
        ended = children.dlio("stage", server.url, tmp_path)
        assert ended.code == StorageError.exit_code
        assert (
            f"cannot read {server.url}{path}: its server sends it as gzip, although dlio asked for plain data"
            in ended.err
        )
        assert ended.peak_bytes < 400 * MiB
        assert {headers["Accept-Encoding"] for _, headers in server.asked} == {"identity"}


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of the server, which answers as S3 does where it is asked for a file."""
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    s3fs.S3FileSystem.clear_instance_cache()
    yield "s3://photos"
    s3fs.S3FileSystem.clear_instance_cache()


def test_no_more_of_a_bucket_is_read_than_asked(server: Server, bucket: str, tmp_path: Path) -> None:
    def answer(request: Request) -> None:
        if request.path == f"/photos/{NAME}":
            return request.send_file(NAME)
        request.begin(206)
        return request.send_for_ever()

    server.answer = answer
    ended = children.dlio("stage", bucket, tmp_path)
    assert ended.code == StorageError.exit_code
    assert "gave more, asked for" in ended.err
    assert ended.peak_bytes < 400 * MiB


def test_a_bucket_whose_server_falls_silent_is_given_up(
    server: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "TOTAL_SECONDS", 0.5)
    server.answer = stall_in_the_body
    with pytest.raises(StorageError, match=rf"cannot read {bucket}/{NAME}: its server sent nothing"):
        dlio.stage(bucket, tmp_path / "local")
