"""Servers that stall, never end, inflate, send elsewhere or deny: real ones on this machine."""

from __future__ import annotations

import base64
import gzip
import http.server
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError, SourceError, StorageError, UsageError
from dlio.io import answers, limits, remote_files
from tests.helpers import children
from tests.helpers.staging import MiB, damaged_files

fsspec = pytest.importorskip("fsspec")

SECRET = "Hush"
ODD = f"{SECRET}@:/?#%+{SECRET} é中\N{PILE OF POO}"
CHUNK = bytes(64 << 10)


class Request(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answers as the test says."""
        self.server.asked.append((self.path, dict(self.headers)))
        with suppress(ConnectionError):
            self.server.answer(self)

    def begin(self, status: int = 200, **headers: object) -> None:
        """Sends a status and headers, in whose names _ stands for -."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def send_file(self, name: str) -> None:
        """Sends what is asked for of a file of the data set."""
        data = (self.server.folder / name).read_bytes()
        span = self.headers["Range"]
        if span:
            first, last = map(int, span.removeprefix("bytes=").split("-"))
            data = data[first : last + 1]
        self.begin(206 if span else 200, Content_Length=len(data))
        self.wfile.write(data)

    def send_for_ever(self) -> None:
        """Sends zeros until the other side has enough."""
        while not self.server.over.is_set():
            self.server.sent += self.wfile.write(CHUNK)

    def send(self, num_bytes: int) -> None:
        """Sends this many zeros."""
        for _ in range(num_bytes // len(CHUNK)):
            self.server.sent += self.wfile.write(CHUNK)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class Server(http.server.ThreadingHTTPServer):
    """Answers by a function.

    Attributes:
        asked: the paths and headers of the requests.
        over: set when the test ends, for answers that do not end by themselves.
        sent: the bytes of answers without end.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.folder = folder
        self.answer: Callable[[Request], None] = lambda request: request.send_file(request.path.lstrip("/"))
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.over = threading.Event()
        self.sent = 0
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Says nothing: clients that go away are the point."""


@pytest.fixture
def serve(dataset: Manifest) -> Iterator[Callable[[], Server]]:
    """Starts servers over the folder of the data set."""
    servers: list[tuple[Server, threading.Thread]] = []

    def start() -> Server:
        server = Server(dataset.root)
        servers.append((server, threading.Thread(target=server.serve_forever)))
        servers[-1][1].start()
        return server

    yield start
    for server, thread in servers:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(serve: Callable[[], Server]) -> Server:
    return serve()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests; what copies is watched by the tests of mounted folders."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(remote_files, "TRIES", 2)


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


class TestPasswords:
    @pytest.fixture
    def url(self, server: Server) -> str:
        """Needs a user and a password that holds all that must be quoted."""
        return server.url.replace("//", f"//us%3Aer:{quote(ODD, safe='')}@")

    def test_the_server_is_told_them_and_nobody_else(
        self, server: Server, url: str, dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        staged = dlio.stage(url, tmp_path / "local")
        assert damaged_files(staged.root, dataset) == []
        for _, headers in server.asked:
            assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"us:er:{ODD}"
        assert SECRET not in caplog.text
        assert SECRET not in (staged.root / ".dlio" / "copy.json").read_text()
        assert server.url in (staged.root / ".dlio" / "copy.json").read_text()

    @pytest.mark.parametrize("status", [401, 403, 404, 416, 500])
    @pytest.mark.parametrize("missing", [NAME, "shard-00004.bin"])
    def test_no_error_tells_them_nor_what_it_comes_from(
        self, server: Server, url: str, status: int, missing: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        whole = server.answer
        server.answer = lambda request: request.begin(status) if request.path == f"/{missing}" else whole(request)
        with pytest.raises((StorageError, ManifestError)) as raised:
            dlio.stage(url, tmp_path / "local", strategy="replicate")
        printed = "".join(traceback.format_exception(raised.value))
        assert f"{server.url}/{missing}" in printed
        assert SECRET not in printed
        assert cli.main(["stage", url, str(tmp_path / "local")]) == raised.value.exit_code
        assert SECRET not in "".join(capfd.readouterr())

    def test_one_that_is_not_quoted_is_refused_and_not_told(
        self, server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for mark in "/?#":
            url = server.url.replace("//", f"//user:{SECRET}{mark}{SECRET}@") + "/packed"
            with pytest.raises(UsageError, match="%2F %3F %23") as raised:
                dlio.stage(url, tmp_path)
            assert SECRET not in "".join(traceback.format_exception(raised.value))
        assert server.asked == []
        assert dlio.stage(server.url.replace("//", f"//user:{SECRET}@{SECRET}@"), tmp_path)  # clear enough
        assert SECRET not in "".join(capfd.readouterr())

    def test_a_redirection_gets_no_password_and_its_query_stays_secret(
        self, server: Server, url: str, serve: Callable[[], Server], tmp_path: Path
    ) -> None:
        other = serve()
        other.answer = lambda request: request.begin(403)
        server.answer = lambda request: request.begin(
            302, Location=f"{other.url}/signed{request.path}?X-Amz-Signature={SECRET}", Content_Length=0
        )
        with pytest.raises(StorageError, match="403") as raised:
            dlio.stage(url, tmp_path)
        printed = "".join(traceback.format_exception(raised.value))
        assert f"{other.url}/signed/{NAME}" in printed
        assert SECRET not in printed
        assert other.asked
        assert all("Authorization" not in headers for _, headers in other.asked)

    def test_keys_in_the_url_of_a_bucket_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"s3://bucket/packed: a bucket's URL holds no keys") as raised:
            dlio.stage(f"s3://AKIA:{SECRET}@bucket/packed", tmp_path)
        assert SECRET not in "".join(traceback.format_exception(raised.value))

    @pytest.mark.parametrize(
        "arguments",
        [
            ["info", "URL"],
            ["verify", "URL"],
            ["convert", "URL", "out", "--format", "hdf5"],
            ["pack", "URL", "out", "--format", "hdf5"],
            ["pack", "no-such-photos", "URL", "--format", "hdf5"],
            ["index", "URL", "--format", "tfrecord"],
            ["stage", "URL", "URL"],
            ["stage", "nothing" + "URL", "out"],
            ["clean", "URL"],
            ["plan", "URL", "--nodes", "URL"],
            ["stage", "--strategy", "URL", "photos"],
            ["URL"],
            ["info", "packed", "URL"],
        ],
    )
    def test_no_verb_tells_them(self, arguments: list[str], url: str, capfd: pytest.CaptureFixture[str]) -> None:
        given = [argument.replace("URL", url) for argument in arguments]
        with suppress(SystemExit):
            assert (cli.main(given) == 0) == (arguments == ["info", "URL"])
        shown = "".join(capfd.readouterr())
        assert shown
        assert SECRET not in shown
        assert quote(SECRET + "@", safe="") not in shown

    def test_functions_that_take_paths_do_not_tell_them(self, url: str, tmp_path: Path) -> None:
        for call in (Manifest.load, dlio.sources.open_source, dlio.sources.packed):
            with pytest.raises((ManifestError, StorageError, UsageError, SourceError)) as raised:
                found = call(url)
                found.listing()
            assert SECRET not in "".join(traceback.format_exception(raised.value))

    @pytest.mark.parametrize("engine", ["dask", "ray", "serial", "mpi", "spark"])
    def test_the_address_of_a_cluster_is_told_without_them(
        self, engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], photos: Path
    ) -> None:
        address = f"tcp://user:{SECRET}@127.0.0.1:1"
        command = ["pack", str(photos), str(tmp_path / "out"), "--format", "recordio", "--engine", engine]
        assert cli.main([*command, "--engine-address", address]) != 0
        shown = "".join(capfd.readouterr())
        assert "127.0.0.1:1" in shown
        assert SECRET not in shown


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
