"""A web server over a folder, which answers ranges; as its own process: `python -m tests.helpers.web FOLDER`."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote


class WebServer(http.server.ThreadingHTTPServer):
    """Serves a folder in ranges.

    Attributes:
        ranges: what was asked for, by path.
        failing: how many of the next requests are answered with 503.
        answers_ranges: whether a Range header is heeded.
        delay: seconds before each answer.
        headers: sent with each answer that has content.
    """

    def __init__(self, folder: Path, delay: float = 0) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.folder = folder
        self.ranges: list[tuple[str, str | None]] = []
        self.failing, self.delay = 0, delay
        self.answers_ranges = True
        self.headers: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self.server_port}"


class Request(http.server.BaseHTTPRequestHandler):
    server: WebServer

    def do_GET(self) -> None:
        name, span = unquote(self.path).lstrip("/"), self.headers["Range"]
        self.server.ranges.append((name, span))
        time.sleep(self.server.delay)
        if self.server.failing:
            self.server.failing -= 1
            self.send_error(503)
            return
        try:
            data = (self.server.folder / name).read_bytes()
        except OSError:
            self.send_error(404)
            return
        whole = len(data)
        self.send_response(206 if span and self.server.answers_ranges else 200)
        if span and self.server.answers_ranges:
            first, last = map(int, span.removeprefix("bytes=").split("-"))
            data = data[first : last + 1]
            self.send_header("Content-Range", f"bytes {first}-{first + len(data) - 1}/{whole}")
        for header in {"Content-Length": str(len(data)), **self.server.headers}.items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def running(server: http.server.ThreadingHTTPServer) -> Iterator[None]:
    """Lets a thread serve until the body ends, then closes the server."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yields the URL of a folder that a process serves."""
    command = [sys.executable, "-m", "tests.helpers.web", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


if __name__ == "__main__":
    process = WebServer(Path(sys.argv[1]))
    sys.stdout.write(f"{process.url}\n")
    sys.stdout.flush()
    process.serve_forever()
