"""Ranges of a bucket's objects, which are asked for as S3's client asks, without the time that it takes."""

from __future__ import annotations

import errno
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dlio.errors import StorageError
from dlio.io import answers, remote_files
from dlio.io.answers import signed
from dlio.io.remote_files import RemoteFiles

s3fs = pytest.importorskip("s3fs")
CONTENT = bytes(range(100))


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """The threads of fsspec stay, for any file system that is opened later."""


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Sends a range of an object, or an error."""
        self.server.asked.append((self.path, self.headers))
        self.server.ports.add(self.client_address[1])
        status = self.server.status(len(self.server.asked))
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(status)
        body = CONTENT[first : last + 1] if status == 206 else b"<Error><Code>AccessDenied</Code></Error>"
        self.send_header("Content-Length", str(len(body)))
        if self.server.hangs_up == "and says so":
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = bool(self.server.hangs_up)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class Server(ThreadingHTTPServer):
    asked: list[tuple[str, Message]]
    status: Callable[[int], int]
    ports: set[int]  # one for each connection
    hangs_up = ""
    closed: threading.Event

    def shutdown_request(self, request: Any) -> None:
        """Notes that a connection was ended."""
        super().shutdown_request(request)
        self.closed.set()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Request) as server:
        server.asked, server.status, server.daemon_threads = [], lambda number: 206, True
        server.closed, server.ports = threading.Event(), set()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-south-2")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        yield server
        server.shutdown()


def signature(server: Server, path: str, headers: Message) -> str:
    """Returns the signature that a request must have, by the client's own code."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    signer = S3SigV4Auth(Credentials("test", "test"), "s3", "eu-south-2")
    given = {name: headers[name] for name in ("Host", "X-Amz-Date", "X-Amz-Content-SHA256")}
    request = AWSRequest("GET", f"http://127.0.0.1:{server.server_port}{path}", given)
    request.context["timestamp"] = headers["X-Amz-Date"]
    found: str = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
    return found


def test_all_ranges_but_the_first_come_without_the_client(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    assert files.fetch("a", 5, (0, 5)) == CONTENT[:5]
    monkeypatch.delattr(type(files._file_system), "_call_s3")
    for name, span in (("a", (5, 9)), ("a", (9, 30)), ("b c+~é", (1, 3))):
        assert files.fetch(name, span[1] - span[0], span) == CONTENT[slice(*span)]
    for path, headers in server.asked[1:]:
        signed = "SignedHeaders=host;x-amz-content-sha256;x-amz-date"
        assert headers["Authorization"].endswith(f"{signed}, Signature={signature(server, path, headers)}")
    assert server.asked[-1][0] == "/bucket/in/b%20c%2B~%C3%A9"


def test_the_client_asks_for_what_was_refused(server: Server) -> None:
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    server.status = lambda number: 400 if number == 2 else 206
    assert [files.fetch("a", 90, (0, 90)) for _ in range(3)] == [CONTENT[:90]] * 3
    assert len(server.asked) == 4
    server.status = lambda number: 403
    with pytest.raises(StorageError, match="cannot read s3://bucket/in/a: ") as raised:
        files.fetch("a", 5, (0, 5))
    assert raised.value.errno == errno.EACCES


def test_who_pays_is_said_in_each_request(server: Server) -> None:
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    files._file_system.req_kw = {"RequestPayer": "requester"}
    for _ in range(2):
        files.fetch("a", 5, (0, 5))
    assert [headers["x-amz-request-payer"] for _, headers in server.asked] == ["requester"] * 2


def test_a_bucket_has_as_many_connections_as_readers_wait(server: Server) -> None:
    """Each takes its latency: by ten of them, 500 ranges a second come at 20 ms."""
    files, together = RemoteFiles("s3://bucket/in", is_alone=True), threading.Barrier(16)
    files.fetch("a", 5, (0, 5))

    def status(number: int) -> int:
        together.wait(20)
        return 206

    server.status = status
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda number: files.fetch("a", 5, (number, number + 5)), range(16)))
    assert found == [CONTENT[number : number + 5] for number in range(16)]


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_bucket_is_asked_as_the_user_configures_it(
    scheme: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.config import conf

    monkeypatch.setitem(conf, scheme, {"config_kwargs": {"user_agent_extra": "of-a-site"}})
    assert RemoteFiles(f"{scheme}://bucket/in", is_alone=True).fetch("a", 5, (0, 5)) == CONTENT[:5]
    assert "of-a-site" in server.asked[0][1]["User-Agent"]


def test_a_server_without_ranges_is_asked_once_for_each(server: Server) -> None:
    server.status = lambda number: 200
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    for number in range(1, 4):
        with suppress(StorageError):
            files.fetch("a", 5, (0, 5))
        assert len(server.asked) == number


@pytest.mark.parametrize("hangs_up", ["and says nothing", "and says so"])
def test_a_connection_that_the_server_has_ended_is_not_used_again(
    hangs_up: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    files.fetch("a", 5, (0, 5))
    monkeypatch.delattr(type(files._file_system), "_call_s3")
    server.hangs_up = hangs_up
    for _ in range(3):
        server.closed.clear()
        assert files.fetch("a", 5, (0, 5)) == CONTENT[:5]
        assert server.closed.wait(20)


def test_a_connection_that_was_idle_for_long_is_not_used_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Firewalls forget it, and tell nobody."""
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    for seconds, connections in ((10.0, 2), (0.0, 5)):  # the client's, and one for all; then one for each
        monkeypatch.setattr(signed, "_IDLE_SECONDS", seconds)
        for _ in range(3):
            assert files.fetch("a", 5, (0, 5)) == CONTENT[:5]
        assert len(server.ports) == connections


@pytest.mark.parametrize("head", ["Content-Length: 99999999999999", "Content-Length: 7", "Transfer-Encoding: chunked"])
def test_an_answer_of_another_length_is_left_to_the_client(
    head: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which reads no more than it is told to; the connection, on which the rest may follow, is not used again."""
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    files.fetch("a", 5, (0, 5))
    name, _, value = head.partition(": ")

    def send_header(request: Request, called: str, told: str) -> None:
        is_told = len(server.asked) != 2 or called != "Content-Length"
        BaseHTTPRequestHandler.send_header(request, *((called, told) if is_told else (name, value)))

    monkeypatch.setattr(answers, "IDLE_SECONDS", 2.0)
    monkeypatch.setattr(remote_files, "TRIES", 1)
    monkeypatch.setattr(Request, "send_header", send_header, raising=False)
    assert [files.fetch("a", 5, (number, number + 5)) for number in range(3)] == [CONTENT[n : n + 5] for n in range(3)]
    assert len(server.asked) == 5


@pytest.mark.parametrize("sent", [b"a", b""])
def test_an_answer_that_drips_is_given_up(sent: bytes, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As is one of which nothing comes."""
    files, over = RemoteFiles("s3://bucket/in", is_alone=True), threading.Event()
    files.fetch("a", 5, (0, 5))

    def drip(request: Request) -> None:
        request.send_response(206)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        with suppress(ConnectionError):
            while not over.wait(0.01):
                request.wfile.write(sent)

    monkeypatch.setattr(Request, "do_GET", drip)
    monkeypatch.setattr(answers, "TOTAL_SECONDS", 0.1)
    monkeypatch.setattr(answers, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(remote_files, "TRIES", 1)
    with pytest.raises(StorageError, match="or not all of it within"):
        files.fetch("a", 100_000, (0, 100_000))
    over.set()
    assert not signed._buckets[files._file_system._s3]  # other connections may be dead, too: the client asks next


def test_a_bucket_behind_a_proxy_is_asked_through_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.server_port}")
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    for _ in range(2):
        assert files.fetch("a", 5, (0, 5)) == CONTENT[:5]
    assert [path for path, _ in server.asked] == [f"http://127.0.0.1:{server.server_port}/bucket/in/a"] * 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
def test_a_server_at_https_has_to_prove_its_name(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(
        [*words.split(), "-keyout", tmp_path / "key", "-out", tmp_path / "of"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "of", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "of"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://localhost:{server.server_port}")
    files = RemoteFiles("s3://bucket/in", is_alone=True)
    files.fetch("a", 5, (0, 5))
    monkeypatch.delattr(type(files._file_system), "_call_s3")
    for number in range(2):
        assert files.fetch("a", 5, (number, number + 5)) == CONTENT[number : number + 5]
    known = signed._buckets[files._file_system._s3]["bucket"]
    assert known.tls is not None
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        signed._Connection(f"https://127.0.0.1:{server.server_port}/", known.tls, 20)
