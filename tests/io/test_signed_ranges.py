"""Ranges of a bucket's objects, which are asked for as S3's client asks, without the time that it takes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dlio.errors import StorageError
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
        status = self.server.status(len(self.server.asked))
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(status)
        body = CONTENT[first : last + 1] if status == 206 else b"<Error><Code>AccessDenied</Code></Error>"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class Server(ThreadingHTTPServer):
    asked: list[tuple[str, Message]]
    status: Callable[[int], int]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Request) as server:
        server.asked, server.status, server.daemon_threads = [], lambda number: 206, True
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
    assert [files.fetch("a", 5, (0, 5)) for _ in range(3)] == [CONTENT[:5]] * 3
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
