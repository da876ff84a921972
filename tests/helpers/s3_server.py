"""An S3-compatible server as its own process: a small one, or moto's if DLIO_TEST_S3=moto is set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_COMMANDS = {"small": ["tests.helpers.small_s3"], "moto": ["moto.server", "-H", "127.0.0.1", "-p", "0"]}


@contextmanager
def s3_server(environment: pytest.MonkeyPatch) -> Iterator[None]:
    """Starts a server, whose address and keys are in the environment; skips the test where s3fs is not installed."""
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()  # of another server
    command = [sys.executable, "-m", *_COMMANDS[os.environ.get("DLIO_TEST_S3", "small")]]
    where = Path(__file__).parents[2]
    with (
        tempfile.NamedTemporaryFile() as log,  # moto fills a pipe with its log
        subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, cwd=where) as server,
    ):
        try:
            while not (found := re.search(r"Running on (http\S+)", Path(log.name).read_text())):
                assert server.poll() is None, Path(log.name).read_text()
                time.sleep(0.02)
            environment.setenv("AWS_ENDPOINT_URL", found[1])
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                environment.setenv(name, "test")
            yield
        finally:
            server.terminate()
