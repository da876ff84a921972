"""An S3 server whose listings are wrong, repeated, huge or endless: one error that names the URL."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dlio.errors import StorageError
from dlio.io.answers import listings
from dlio.io.remote_files import RemoteFiles

s3fs = pytest.importorskip("s3fs")
MiB = 1 << 20


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """The threads of fsspec stay, for any file system that is opened later."""


def entry(key: str, size: object = 3) -> str:
    return f"<Contents><Key>{key}</Key><Size>{size}</Size></Contents>"


def page(*entries: str, token: object = None) -> str:
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token is not None else ""
    state = f"<IsTruncated>{str(token is not None).lower()}</IsTruncated>{more}"
    return f"<ListBucketResult>{state}{''.join(entries)}</ListBucketResult>"


class Request(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Sends the next page of the listing, which may be as long as it says."""
        body = self.server.answer(next(self.server.numbers)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(max(len(body), self.server.length)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)
            for _ in range((self.server.length - len(body)) // MiB):
                self.wfile.write(b"a" * MiB)
                self.server.sent += MiB

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class Server(ThreadingHTTPServer):
    answer: Callable[[int], str]
    length, sent = 0, 0

    def handle_error(self, *_: object) -> None:
        """A client that closes the connection is no error."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Request) as server:
        server.numbers = itertools.count()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        yield server
        server.shutdown()


LAUGHS = "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(9))
BOMB = f'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "{"ha" * 50}">{LAUGHS}]>{page(entry("in/&j;"))}'
LISTINGS = {
    "a key twice": (lambda number: page(entry("in/a"), entry("in/a")), "lists 'in/a' twice"),
    "the same page again": (lambda number: page(entry("in/a"), token=number), "lists 'in/a' twice"),
    "a token again": (lambda number: page(entry(f"in/{number}"), token=number % 3), "listing does not end"),
    "empty pages": (lambda number: page(token=number), "listing does not end"),
    "no end": (lambda number: page(entry(f"in/{number}"), token=number), "listing does not end, after 51 entries"),
    "a key elsewhere": (lambda number: page(entry("other/a")), "lists 'other/a', which does not begin with 'in/'"),
    "no key": (lambda number: page("<Contents><Size>3</Size></Contents>"), "lists None"),
    "a negative size": (lambda number: page(entry("in/a", -1)), "lists 'in/a' with the size -1"),
    "a size of 100 bits": (lambda number: page(entry("in/a", 1 << 100)), "lists 'in/a' with the size 126765"),
}


def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "MOST_LISTED", 50)
    RemoteFiles("s3://bucket/in", is_alone=True).files_below("")


@pytest.mark.parametrize("case", LISTINGS)
def test_a_listing_that_lies_is_an_error_with_the_url(server, monkeypatch, case):
    server.answer, says = LISTINGS[case]
    with pytest.raises(StorageError, match=f"cannot read s3://bucket/in/: its server('s)? {says}"):
        listed(monkeypatch)


def test_an_answer_without_end_is_not_read_to_its_end(server, monkeypatch):
    server.answer, server.length = (lambda number: "<ListBucketResult>"), 1 << 40
    with pytest.raises(StorageError, match="s3://bucket/in/: its server's answer has more than 16 MiB"):
        listed(monkeypatch)
    assert server.sent < 64 * MiB  # some of it waited in buffers


def test_an_xml_bomb_does_not_go_off(server, monkeypatch):
    server.answer = lambda number: BOMB
    monkeypatch.setattr("dlio.io.remote_files.TRIES", 1)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StorageError, match="cannot read s3://bucket/in/: "):
        listed(monkeypatch)


def test_pages_are_joined_and_the_folder_itself_is_left_out(server, monkeypatch):
    pages = [page(entry("in/", 0), entry("in/a"), token="x"), page(token="y"), page(entry("in/b/c"))]
    server.answer = pages.__getitem__
    found = RemoteFiles("s3://bucket/in", is_alone=True).files_below("")
    assert [(name, details["size"]) for name, details in found] == [("a", 3), ("b/c", 3)]
