"""A real HTTP server on this machine that answers as a test says."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
        """Says nothing."""


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


@contextmanager
def servers_of(folder: Path) -> Iterator[Callable[[], Server]]:
    """Yields a function that starts a server over a folder."""
    servers: list[tuple[Server, threading.Thread]] = []

    def start() -> Server:
        server = Server(folder)
        servers.append((server, threading.Thread(target=server.serve_forever)))
        servers[-1][1].start()
        return server

    yield start
    for server, thread in servers:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
