"""An S3-compatible server, moto's, as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def s3_server(environment: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts a server, whose address and keys are in the environment; skips the test where it is not installed."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "Running on" in line)
            environment.setenv("AWS_ENDPOINT_URL", line.rpartition("Running on ")[2].strip())
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                environment.setenv(name, "test")
            yield
        finally:
            server.terminate()
